# SPDX-License-Identifier: Apache-2.0
"""Reduces tf.IndexedSlices, by two gathers."""

from __future__ import annotations

import tensorflow as tf

from talweg._collectives.process_sets import ProcessSet
from talweg._declaration import Op
from talweg.tensorflow import _gradients
from talweg.tensorflow._compression import NoneCompressor


def reduce_slices(
    slices: tf.IndexedSlices,
    name: str | None,
    op: Op,
    process_set: ProcessSet | None = None,
    compression: type = NoneCompressor,
) -> tf.IndexedSlices:
    """Returns all ranks' rows. For an average they are divided by the number of ranks.

    In a graph `name` is unique. Optimizers and tapes sum the rows instead
    (talweg.tensorflow._gradients).
    """
    choices = _gradients.Choices(op, compression, process_set=process_set)
    return _gradients.Slices(slices, name, choices).gather()
