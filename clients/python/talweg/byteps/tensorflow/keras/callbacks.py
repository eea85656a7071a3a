# SPDX-License-Identifier: Apache-2.0
"""BytePS's callbacks for tf.keras."""

from __future__ import annotations

import tensorflow as tf

from talweg._compat.tensorflow.callbacks import BroadcastVariables, MetricAverage, schedules

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(BroadcastVariables, tf.keras.callbacks.Callback):
    """Makes all variables the root's after the first batch."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__(root_rank, device)


class MetricAverageCallback(MetricAverage, tf.keras.callbacks.Callback):
    """Averages an epoch's metrics over the ranks. Put it before callbacks that use them."""

    def __init__(self, device: str = "") -> None:
        super().__init__(device)


LearningRateScheduleCallback, LearningRateWarmupCallback = schedules(tf.keras, rate_is_last=True)
