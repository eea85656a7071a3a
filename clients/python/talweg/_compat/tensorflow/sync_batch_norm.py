# SPDX-License-Identifier: Apache-2.0
"""Batch normalization by the mean and the variance of all ranks' batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from talweg import _client
from talweg.tensorflow import _ops


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Keras's BatchNormalization, with the mean and the variance of all ranks' batches together.

    All ranks' batches count alike, whatever their sizes. `fused` must be False.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused is None or fused:
            raise ValueError(f"SyncBatchNormalization does not support fused={fused}: leave it out")
        kwargs.setdefault("name", None)
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        mean, variance = super()._moments(inputs, *arguments, **keywords)
        client = _client.current()
        # A graph outlives changes of the ranks: it keeps the round if nodes may come.
        if client.size == 1 and not client.nodes_change:
            return mean, variance
        square = variance + tf.square(mean)
        base = "sync_batch_norm"
        mean, square = _ops.grouped_push_pull([mean, square], name=base)
        return mean, square - tf.square(mean)
