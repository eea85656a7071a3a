# SPDX-License-Identifier: Apache-2.0
"""Talweg's own optimizer and tape."""

from __future__ import annotations

from typing import TypeVar

import tensorflow as tf

from talweg._arguments import chosen_op
from talweg._collectives.process_sets import ProcessSet
from talweg._declaration import Op
from talweg.tensorflow import _optimizer, _tape
from talweg.tensorflow._compression import Compression, Compressor
from talweg.tensorflow._gradients import Choices

OptimizerT = TypeVar("OptimizerT")


def DistributedOptimizer(
    optimizer: OptimizerT,
    op: Op | None = None,
    *,
    average: bool = True,
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    process_set: ProcessSet | None = None,
) -> OptimizerT:
    """Makes `optimizer` combine its gradients over the ranks; returns the same object.

    An optimizer of Keras 3, of tf-keras or of tf.compat.v1.train. In tf.function and Model.fit each
    gradient leaves as soon as it is computed. tf.IndexedSlices are gathered, or with
    `sparse_as_dense` made dense. With several `backward_passes_per_step` the sum of so many
    gradients is combined and applied; the passes between leave the variables as they are.
    """
    choices = Choices(
        chosen_op(op, average),
        compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    return _optimizer.distribute(optimizer, choices, backward_passes_per_step)


def DistributedGradientTape(
    tape: tf.GradientTape,
    op: Op | None = None,
    *,
    average: bool = True,
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    process_set: ProcessSet | None = None,
) -> tf.GradientTape:
    """Makes `tape` combine what gradient() returns; returns the same object. See
    DistributedOptimizer(), beside which it is not needed.
    """
    choices = Choices(
        chosen_op(op, average),
        compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    return _tape.distribute_tape(tape, choices)
