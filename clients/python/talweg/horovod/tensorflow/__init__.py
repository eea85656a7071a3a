# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow over Talweg: `import horovod.tensorflow as hvd` runs unchanged.

See docs/horovod.md.
"""

from __future__ import annotations

from typing import Any

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import tensorflow as _tensorflow  # noqa: F401

from talweg.horovod.common.exceptions import HorovodInternalError
from talweg.horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from talweg.horovod.tensorflow import elastic, mpi_ops, util
from talweg.horovod.tensorflow.compression import Compression
from talweg.horovod.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from talweg.horovod.tensorflow.gradients import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)
from talweg.horovod.tensorflow.mpi_ops import *  # noqa: F403
from talweg.horovod.tensorflow.util import _executing_eagerly  # noqa: F401

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "SyncBatchNormalization",  # noqa: F405
    "add_process_set",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "global_process_set",
    "remove_process_set",
    "util",
]
__all__ += mpi_ops.__all__


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # It needs Keras, which takes a second to import.
        from talweg._compat.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
