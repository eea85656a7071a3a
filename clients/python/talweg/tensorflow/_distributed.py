# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer() and DistributedGradientTape() of talweg.tensorflow."""

from __future__ import annotations

from typing import TypeVar

import tensorflow as tf

from talweg._arguments import chosen_op
from talweg._collectives.process_sets import ProcessSet
from talweg._declaration import Op
from talweg.errors import InvalidArgument
from talweg.tensorflow import _optimizer, _tape
from talweg.tensorflow._compression import Compression, Compressor
from talweg.tensorflow._gradients import Choices

OptimizerT = TypeVar("OptimizerT")


def _require(name: str) -> None:
    if not isinstance(name, str):
        raise InvalidArgument(f"name is {name!r}; it must be a str")


def DistributedOptimizer(
    optimizer: OptimizerT,
    op: Op | None = None,
    *,
    average: bool = True,
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    process_set: ProcessSet | None = None,
    name: str = "gradient",
) -> OptimizerT:
    """Makes `optimizer` combine its gradients over the ranks; returns the same object.

    `optimizer` is one of Keras 3, of tf-keras or of tf.compat.v1.train. In tf.function and
    Model.fit each gradient leaves as soon as it is computed. tf.IndexedSlices stay sparse, with each
    row once; with `sparse_as_dense` they are made dense. With several `backward_passes_per_step`
    the gradients of so many passes are summed, and the sum is combined and applied in the last one.
    The other passes leave the variables as they are. A second such optimizer in one process needs
    another `name`. Raises InvalidArgument for another kind of optimizer, and Unsupported if Keras 3
    runs on another backend than TensorFlow.
    """
    choices = Choices(
        chosen_op(op, average),
        compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    _require(name)
    return _optimizer.distribute(optimizer, choices, backward_passes_per_step, name=name)


def DistributedGradientTape(
    tape: tf.GradientTape,
    op: Op | None = None,
    *,
    average: bool = True,
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    process_set: ProcessSet | None = None,
    name: str = "tape.gradient",
) -> tf.GradientTape:
    """Makes `tape` combine the gradients that gradient() returns; returns the same object.

    The arguments mean the same as in DistributedOptimizer(). The tapes of a second model need
    another `name`. With an optimizer from there, no such tape is needed. Raises InvalidArgument if
    `tape` is no tf.GradientTape.
    """
    choices = Choices(
        chosen_op(op, average),
        compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    _require(name)
    return _tape.distribute_tape(tape, choices, name)
