# SPDX-License-Identifier: Apache-2.0
"""Batch normalization by the figures of all ranks' batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from talweg import _client
from talweg.tensorflow import _ops


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Keras's BatchNormalization, whose mean and variance are those of the ranks' batches together.

    The batches are taken for equally large. `fused` must be False.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused not in (False, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        kwargs.setdefault("name", None)
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        mean, variance = super()._moments(inputs, *arguments, **keywords)
        client = _client.current()
        if client.size == 1 and not client.nodes_change:  # A graph stays where others come.
            return mean, variance
        square = variance + tf.square(mean)
        base = "sync_batch_norm"
        mean, square = _ops.grouped_push_pull([mean, square], name=base)
        return mean, square - tf.square(mean)
