# SPDX-License-Identifier: Apache-2.0
"""Optimizers of MXNet whose ranks make steps at their own pace: docs/asynchronous.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from talweg._compat.mxnet.errors import internal
from talweg._compat.mxnet.training import Gradients, WrappedOptimizer
from talweg._exchange.asynchronous import AsynchronousSteps
from talweg._exchange.asynchronous_arrays import Arrays
from talweg.byteps import _asynchrony
from talweg.errors import InvalidArgument, Unsupported

_CALLER = "DistributedOptimizer"


class _Weights(Arrays):
    """The weights that an optimizer updates."""

    def __init__(self, weights: dict[Any, mx.nd.NDArray]) -> None:
        self._weights = weights
        super().__init__(
            [str(index) for index in weights],
            [np.zeros(each.shape, each.dtype) for each in weights.values()],
        )

    def fetch(self) -> None:
        self.values = [each.asnumpy() for each in self._weights.values()]

    def give_back(self) -> None:
        for weight, value in zip(self._weights.values(), self.values):
            weight[:] = value
            weight.wait_to_read()  # The copy reads `value` until then.


class _Steps:
    """Finds a step's beginning and end in the updates of single weights.

    The first step tells which weights there are. It is not shared with the other ranks. Each later
    step ends when all of them are updated, or when one is updated again.
    """

    def __init__(self) -> None:
        self._weights: dict[Any, mx.nd.NDArray] = {}
        self._updated: set[Any] = set()  # In the current step.
        self._shared: tuple[AsynchronousSteps, _Weights] | None = None  # From the second step on.

    def before_update(self, indices: Sequence[Any]) -> None:
        if any(index in self._updated for index in indices):
            if self._shared is None:
                weights = _Weights(self._weights)
                name = _asynchrony.next_name()
                steps = AsynchronousSteps(_CALLER, weights, 0, None, name, None)
                self._shared = steps, weights
                self._updated.clear()
            else:
                self._end()
        if self._shared is None:
            return
        new = next((index for index in indices if index not in self._weights), None)
        if new is not None:
            raise InvalidArgument(
                f"{_CALLER}: weight {new} is updated, and was not in the first step: with "
                "BYTEPS_ENABLE_ASYNC=1 the first step must update all weights"
            )
        if not self._updated:
            self._call(AsynchronousSteps.before_step)

    def after_update(self, indices: Sequence[Any], weights: Sequence[mx.nd.NDArray]) -> None:
        self._weights.update(zip(indices, weights))
        self._updated.update(indices)
        if self._shared is not None and len(self._updated) == len(self._weights):
            self._end()

    def _end(self) -> None:
        self._updated.clear()
        self._call(AsynchronousSteps.after_step)

    def _call(self, call: Callable[[AsynchronousSteps], None]) -> None:
        assert self._shared is not None
        steps, weights = self._shared
        if call is AsynchronousSteps.before_step and not steps.is_resting:
            return
        weights.fetch()
        call(steps)
        weights.give_back()

    def flush(self) -> None:
        if self._shared is not None:
            self._shared[0].flush()


def _alone() -> None:
    """Says that gradients stay this rank's own."""


class AsynchronousOptimizer(WrappedOptimizer):
    """An optimizer that adds its steps to those of all other ranks, and waits for no rank's step."""

    _OWN = WrappedOptimizer._OWN | {"_steps"}

    def __init__(self, optimizer: mx.optimizer.Optimizer) -> None:
        super().__init__(optimizer, Gradients(_alone, str))
        self._steps = _Steps()

    def _update(self, update: Callable[..., None], index: Any, weight: Any, *rest: Any) -> None:
        indices, weights = index, weight
        if not isinstance(index, (tuple, list)):
            indices, weights = [index], [weight]
        if self._optimizer.multi_precision and any(w.dtype == np.float16 for w in weights):
            raise Unsupported(
                f"{_CALLER} with BYTEPS_ENABLE_ASYNC=1 and multi_precision: the optimizer has f32 "
                "copies of its f16 weights, which other ranks' steps do not reach. Use f32 weights, or "
                "leave out multi_precision"
            )
        self._steps.before_update(indices)
        update(index, weight, *rest)
        self._steps.after_update(indices, weights)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        internal(lambda: self._update(self._optimizer.update, index, weight, grad, state))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        call = self._optimizer.update_multi_precision
        internal(lambda: self._update(call, index, weight, grad, state))

    def take(self, loaded: mx.optimizer.Optimizer) -> None:
        """Goes on with an optimizer that was loaded, and with the same meetings."""
        self._optimizer = loaded._optimizer if isinstance(loaded, WrappedOptimizer) else loaded

    def flush(self) -> None:
        """Makes the weights equal at all ranks. Each calls it after its last step."""
        internal(self._steps.flush)
