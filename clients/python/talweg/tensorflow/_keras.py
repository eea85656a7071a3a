# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Model.fit, for Keras 3 and for tf-keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import talweg
from talweg import _client
from talweg._library.native_arguments import whole
from talweg.errors import InvalidArgument
from talweg.tensorflow import _graphs, _variables


class Hooks:
    """The methods that tf-keras, but not Keras 3, asks of every callback."""

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns the optimizer's variables. Legacy optimizers have a method instead of a list."""
    found = getattr(optimizer, "variables", [])
    return list(found() if callable(found) else found)


class BroadcastVariables(Hooks):
    """Makes model and optimizer equal to the root's after the first batch.

    The first batch makes their variables.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = whole("root_rank", root_rank)
        self.device = device
        self.broadcast_done = False
        self._local = [_variables.tf_variable(each).ref() for each in local_variables or []]

    def register_local_var(self, var: Any) -> None:
        """Leaves this variable out of the broadcast."""
        self._local.append(_variables.tf_variable(var).ref())

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._broadcast()

    def _broadcast(self) -> None:
        if self.broadcast_done:
            return
        model: Any = self.model  # type: ignore[attr-defined]
        _client.current()
        with tf.device(self.device), tf.init_scope():
            for kind, found in (
                ("model", list(model.variables)),
                ("optimizer", optimizer_variables(model.optimizer)),
            ):
                own = [
                    each
                    for each in found
                    if isinstance(_variables.tf_variable(each), tf.Variable)
                    and _variables.tf_variable(each).ref() not in self._local
                ]
                spread = _variables.assign_from_root(own, self.root_rank, None, f"callback.{kind}")
                _graphs.evaluated(spread)
        self.broadcast_done = True


class MetricAverage(Hooks):
    """Replaces an epoch's metrics by the ranks' averages, for the callbacks that come after it."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not logs:
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        values = np.array([float(logs[name]) for name in names], np.float64)
        if names:
            averages = talweg.push_pull(values, name=f"callback.metrics.{len(names)}")
            logs.update({name: float(value) for name, value in zip(names, averages)})


class LearningRateSchedule(Hooks):
    """Multiplies the learning rate at the begin of each batch, or of each epoch."""

    # Whether initial_lr=None is an error. Otherwise the optimizer's rate is taken.
    needs_rate = False

    def __init__(
        self,
        initial_lr: float | None,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None and self.needs_rate:
            raise InvalidArgument("initial_lr is None: pass the learning rate to begin with")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.restore_momentum: Any = None
        self.staircase = staircase if callable(multiplier) else True
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - self.start_epoch)

    def _optimizer(self) -> Any:
        return self.model.optimizer  # type: ignore[attr-defined]

    def on_train_begin(self, logs: Any = None) -> None:
        if self.initial_lr is None:
            self.initial_lr = rate_of(self._optimizer())
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")  # type: ignore[attr-defined]
            if not self.steps_per_epoch:
                raise InvalidArgument(
                    "the steps of an epoch are not known: pass steps_per_epoch, or staircase=True"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or over:
            return
        if self.staircase and batch == 0:
            self._adjust(self.current_epoch)
        elif not self.staircase:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.restore_momentum is not None:
            _set_momentum(self._optimizer(), self.restore_momentum)
            self.restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = rate_of(self._optimizer())

    def _adjust(self, epoch: float) -> None:
        optimizer = self._optimizer()
        old = rate_of(optimizer)
        new = float(self.initial_lr or 0.0) * self.multiplier(epoch)
        _assign(optimizer, "learning_rate", new)
        momentum = getattr(optimizer, "momentum", None)
        # A traced step sees the change of a variable only.
        if self.momentum_correction and _is_variable(momentum) and old > 0:
            self.restore_momentum = _number(momentum)
            _set_momentum(optimizer, self.restore_momentum * new / old)


def rate_of(optimizer: Any) -> float:
    return _number(optimizer.learning_rate)


def _number(value: Any) -> float:
    """Returns the value of a variable, a tensor or a number."""
    value = _variables.tf_variable(value)
    if isinstance(value, tf.Variable):
        [value] = _graphs.read([value])
    return float(np.asarray(_graphs.evaluated(value)))


def _is_variable(value: Any) -> bool:
    return hasattr(value, "assign")


def _assign(optimizer: Any, name: str, value: float) -> None:
    held = getattr(optimizer, name)
    if _is_variable(held):
        _graphs.write([_variables.tf_variable(held)], [value])
    else:
        setattr(optimizer, name, value)


def _set_momentum(optimizer: Any, value: float) -> None:
    _assign(optimizer, "momentum", value)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the rate from that of one rank to `initial_lr`, that of all ranks, in some epochs."""

    # Whether rank 0 alone prints what `verbose` asks for.
    first_rank_prints = False

    def __init__(
        self,
        initial_lr: float | None,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.verbose = verbose

        def multiplier(epoch: float) -> float:
            # Counts the coming step too, so that the last step has the whole rate.
            epoch += 1.0 / float(self.steps_per_epoch or 1)
            size = _client.current().size
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            0,
            warmup_epochs,
            False,
            momentum_correction,
            steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        prints = self.verbose > 0 and (not self.first_rank_prints or _client.current().rank == 0)
        if epoch == (self.end_epoch or 0) - 1 and prints:
            rate = rate_of(self._optimizer())
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")
