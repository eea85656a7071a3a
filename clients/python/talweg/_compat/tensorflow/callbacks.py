# SPDX-License-Identifier: Apache-2.0
"""Makes the other systems' callbacks from one Keras's Callback class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from talweg._compat.tensorflow.failures import operation
from talweg.tensorflow import _keras


class BroadcastVariables(_keras.BroadcastVariables):
    """A BroadcastVariables that raises errors of tf.errors."""

    _broadcast = operation(_keras.BroadcastVariables._broadcast)


class MetricAverage(_keras.MetricAverage):
    """A MetricAverage that raises errors of tf.errors."""

    on_epoch_end = operation(_keras.MetricAverage.on_epoch_end)


def best_model_checkpoint(keras: Any) -> type:
    """Returns Horovod's BestModelCheckpoint; `filepath` must be set before training."""

    class BestModelCheckpoint(_keras.Hooks, keras.callbacks.ModelCheckpoint):
        """A ModelCheckpoint(save_best_only=True) that writes to `filepath`."""

        def __init__(
            self,
            monitor: str,
            verbose: int,
            save_weights_only: bool,
            mode: str,
            save_freq: Any,
        ) -> None:
            suffix = ".weights.h5" if save_weights_only else ".keras"
            super().__init__(
                filepath=f"best{suffix}",
                monitor=monitor,
                verbose=verbose,
                save_best_only=True,
                save_weights_only=save_weights_only,
                mode=mode,
                save_freq=save_freq,
            )
            self.filepath: Any = None

        def set_model(self, model: Any) -> None:
            if self.filepath is None:
                raise ValueError(
                    "BestModelCheckpoint.filepath is None: set it to a file's name before training"
                )
            super().set_model(model)

    return BestModelCheckpoint


def schedules(keras: Any, rate_is_last: bool) -> tuple[type, type]:
    """Returns the classes LearningRateScheduleCallback and LearningRateWarmupCallback.

    The rate is Horovod's first argument and BytePS's last. If the multiplier is a number, Horovod
    takes it as the decay per epoch, and BytePS as the factor of the first rate. Horovod needs the
    rate, and BytePS takes the optimizer's. What Horovod prints, rank 0 prints alone.
    """
    base: Any = keras.callbacks.Callback
    if rate_is_last:

        class LastSchedule(_keras.LearningRateSchedule, base):
            """Multiplies the learning rate from `start_epoch` to `end_epoch`, by epoch or batch.

            A multiplier that is a number is a factor of the first rate, not of the last epoch's.
            """

            def __init__(
                self,
                multiplier: float | Callable[[float], float],
                start_epoch: int = 0,
                end_epoch: int | None = None,
                staircase: bool = True,
                momentum_correction: bool = True,
                steps_per_epoch: int | None = None,
                initial_lr: float | None = None,
            ) -> None:
                own = multiplier
                super().__init__(
                    initial_lr,
                    own if callable(own) else lambda _: own,
                    start_epoch,
                    end_epoch,
                    staircase or not callable(own),
                    momentum_correction,
                    steps_per_epoch,
                )

        class LastWarmup(_keras.LearningRateWarmup, base):
            """Raises the learning rate to that of all ranks, in some epochs."""

            def __init__(
                self,
                warmup_epochs: int = 5,
                momentum_correction: bool = True,
                steps_per_epoch: int | None = None,
                verbose: int = 0,
                initial_lr: float | None = None,
            ) -> None:
                super().__init__(
                    initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose
                )

        return LastSchedule, LastWarmup

    class Schedule(_keras.LearningRateSchedule, base):
        """Multiplies the learning rate from `start_epoch` to `end_epoch`, by epoch or by batch."""

        needs_rate = True

    class Warmup(_keras.LearningRateWarmup, base):
        """Raises the learning rate to that of all ranks, in some epochs."""

        needs_rate = True
        first_rank_prints = True

    return Schedule, Warmup
