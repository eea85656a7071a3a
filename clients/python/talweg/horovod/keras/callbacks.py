# SPDX-License-Identifier: Apache-2.0
"""Horovod's callbacks for Keras."""

from __future__ import annotations

from typing import Any

import keras

from talweg._compat.tensorflow.callbacks import (
    BroadcastVariables,
    MetricAverage,
    best_model_checkpoint,
    schedules,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(BroadcastVariables, keras.callbacks.Callback):
    """Makes all variables but `local_variables` equal to the root's, after the first batch."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__(root_rank, device, local_variables)


class MetricAverageCallback(MetricAverage, keras.callbacks.Callback):
    """Averages an epoch's metrics over the ranks. Put it before callbacks that use them."""

    def __init__(self, device: str = "") -> None:
        super().__init__(device)


LearningRateScheduleCallback, LearningRateWarmupCallback = schedules(keras, rate_is_last=False)
_BestModelCheckpoint: Any = best_model_checkpoint(keras)


class BestModelCheckpoint(_BestModelCheckpoint):
    """Keeps the best model in the file that the attribute `filepath` names. Set it first."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)
