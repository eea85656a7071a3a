# SPDX-License-Identifier: Apache-2.0
"""Talweg for TensorFlow 2 and Keras.

    import talweg.tensorflow as tw

    tw.init()
    total = tw.push_pull(tensor, name="x", average=False)

The calls work eagerly, in tf.function and in tf.compat.v1's graphs, and have gradients.
docs/tensorflow.md says how.
"""

from __future__ import annotations

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import tensorflow as _tensorflow  # noqa: F401

from talweg import (
    Op,
    ProcessSet,
    barrier,
    init,
    is_initialized,
    local_rank,
    local_size,
    pushed_bytes,
    rank,
    shutdown,
    size,
)
from talweg.tensorflow._asynchronous import AsynchronousOptimizer
from talweg.tensorflow._compression import Compression
from talweg.tensorflow._distributed import DistributedGradientTape, DistributedOptimizer
from talweg.tensorflow._ops import (
    all_gather,
    all_gather_object,
    all_to_all,
    broadcast,
    broadcast_object,
    grouped_all_gather,
    grouped_push_pull,
    grouped_reduce_scatter,
    push_pull,
    reduce_scatter,
)
from talweg.tensorflow._variables import BroadcastGlobalVariablesHook, broadcast_variables

__all__ = [
    "AsynchronousOptimizer",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Op",
    "ProcessSet",
    "all_gather",
    "all_gather_object",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "grouped_all_gather",
    "grouped_push_pull",
    "grouped_reduce_scatter",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "push_pull",
    "pushed_bytes",
    "rank",
    "reduce_scatter",
    "shutdown",
    "size",
]
