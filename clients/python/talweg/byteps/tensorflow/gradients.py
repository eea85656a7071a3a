# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer and DistributedGradientTape by BytePS's signatures."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from talweg.byteps.tensorflow.ops import Average, op_of
from talweg.errors import Unsupported
from talweg.tensorflow import _optimizer, _tape
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
    """
    if enable_async:
        raise Unsupported(
            "DistributedOptimizer(enable_async=True) is not offered by Talweg: leave it out"
        )
    choices = Choices(op_of(op), compression, sparse_as_dense=sparse_as_dense)
    return _optimizer.distribute(optimizer, choices, backward_passes_per_step)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
) -> Any:
    """Makes `gradtape` average what gradient() returns over the ranks; returns the same object."""
    choices = Choices(op_of(op), compression, sparse_as_dense=sparse_as_dense)
    return _tape.distribute_tape(gradtape, choices)
