# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer and DistributedGradientTape by BytePS's signatures."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from talweg._compat.tensorflow import names
from talweg._compat.tensorflow.failures import guard
from talweg._declaration import Op
from talweg.byteps import _asynchrony
from talweg.byteps.tensorflow.ops import Average, op_of
from talweg.tensorflow import _optimizer, _tape
from talweg.tensorflow._asynchronous import AsynchronousOptimizer
from talweg.tensorflow._compression import Compression
from talweg.tensorflow._gradients import Choices

__all__ = ["DistributedGradientTape", "DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    enable_async: bool = False,
) -> Any:
    """Makes `optimizer` average its gradients over all ranks; returns the same object.

    It is an optimizer of tf.compat.v1.train, of Keras 3 or of tf-keras. `name`, `use_locking` and
    the devices have no effect. See talweg.tensorflow.DistributedOptimizer().

    With `enable_async`, or BYTEPS_ENABLE_ASYNC=1, gradients stay as they are, and the ranks' steps are
    added up without any rank waiting for another. See talweg.tensorflow.AsynchronousOptimizer().
    """
    if enable_async or _asynchrony.is_asked_for():
        return asynchronous(optimizer, compression, backward_passes_per_step)
    return synchronous(optimizer, op_of(op), compression, sparse_as_dense, backward_passes_per_step)


def synchronous(
    optimizer: Any, op: Op, compression: Any, sparse_as_dense: bool, passes: int = 1
) -> Any:
    """Makes `optimizer` average its gradients over all ranks; returns the same object."""
    choices = Choices(op, compression, sparse_as_dense=sparse_as_dense, guard=guard)
    own = names.of_optimizer(optimizer, choices)
    return _optimizer.distribute(optimizer, choices, passes, name=own)


def asynchronous(optimizer: Any, compression: Any, passes: int = 1) -> Any:
    """Makes `optimizer` make steps that wait for no other rank; returns the same object."""
    _asynchrony.refuse_compression(compression, Compression.none)
    return AsynchronousOptimizer(
        optimizer, ahead=0, backward_passes_per_step=passes, name=_asynchrony.next_name()
    )


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
) -> Any:
    """Makes `gradtape` average what gradient() returns over the ranks; returns the same object."""
    _asynchrony.refuse("DistributedGradientTape")
    choices = Choices(op_of(op), compression, sparse_as_dense=sparse_as_dense, guard=guard)
    return _tape.distribute_tape(gradtape, choices)
