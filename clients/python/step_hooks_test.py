# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers whose class calls its base class's step(), in a job of one rank."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import talweg
import talweg.torch as tw
import torch
from talweg.torch._step_hooks import is_inner_step
from torch import nn


class _Own(torch.optim.SGD):
    """torch hooks its step(), and the one that this calls."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


class _Wrapping(torch.optim.SGD):
    """Has another optimizer make its steps."""

    inner: torch.optim.Optimizer

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return self.inner.step(closure)


def _fails() -> float:
    raise ValueError


class StepHooksTest(unittest.TestCase):
    def setUp(self) -> None:
        talweg.init()
        self.addCleanup(talweg.shutdown)
        torch.optim.SGD([nn.Parameter(torch.ones(1))])  # From now on SGD.step has hooks, too.
        self.model = nn.Linear(3, 2)

    def _own(self) -> _Own:
        return _Own(self.model.parameters(), lr=0.1)

    def _noted(self, optimizer: torch.optim.Optimizer) -> list[bool]:
        noted: list[bool] = []
        optimizer.register_step_pre_hook(lambda *_: noted.append(is_inner_step(optimizer)))
        optimizer.register_step_post_hook(lambda *_: noted.append(is_inner_step(optimizer)))
        return noted

    def test_the_step_within_is_the_inner_one(self) -> None:
        optimizer = self._own()
        noted = self._noted(optimizer)
        for _ in range(2):
            optimizer.step()
        self.assertEqual(noted, [False, True, True, False] * 2)

    def test_a_step_that_has_raised_is_over(self) -> None:
        optimizer = self._own()
        noted = self._noted(optimizer)
        with self.assertRaises(ValueError):
            optimizer.step(_fails)
        noted.clear()
        optimizer.step()
        self.assertEqual(noted, [False, True, True, False])

    def test_the_step_of_another_optimizer_is_its_own(self) -> None:
        outer = _Wrapping(self.model.parameters(), lr=0.1)
        outer.inner = torch.optim.SGD(self.model.parameters(), lr=0.1)
        noted = self._noted(outer.inner)
        outer.step()
        self.assertEqual(noted, [False, False])

    def _steps(self, optimizer: Any, count: Callable[[], int]) -> None:
        """Makes four steps; a fifth fails between two of them."""
        for step in range(5):
            optimizer.zero_grad()
            self.model(torch.ones(2, 3)).sum().backward()
            if step == 2:
                with self.assertRaises(ValueError):
                    optimizer.step(_fails)
                continue
            optimizer.step()
        self.assertEqual(count(), 4)

    def test_a_distributed_optimizer_counts_each_step_once(self) -> None:
        named = self.model.named_parameters()
        optimizer: Any = tw.DistributedOptimizer(self._own(), named)
        self._steps(optimizer, lambda: optimizer._talweg.exchange.steps)

    def test_local_steps_count_each_step_once(self) -> None:
        optimizer: Any = tw.LocalSGD(self.model, self._own(), every=2)
        self._steps(optimizer, lambda: optimizer._talweg_local.steps)

    def test_asynchronous_steps_count_each_step_once(self) -> None:
        optimizer: Any = tw.AsynchronousOptimizer(self._own(), self.model.named_parameters())
        steps = optimizer._talweg_asynchronous
        with mock.patch.object(steps, "after_step", wraps=steps.after_step) as counted:
            self._steps(optimizer, lambda: counted.call_count)
        optimizer.flush()

    def test_learning_rates_are_scaled_once(self) -> None:
        optimizer = self._own()
        sampler = talweg.ElasticSampler(30, batch_size=4, seed=1)
        state = tw.Elastic(self.model, optimizer, scale="global_batch", sampler=sampler)
        state.begin()
        state._values["full_step"] = 8
        rates: list[float] = []
        optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
        next(iter(sampler))

        def rate() -> float:
            rates.append(optimizer.param_groups[0]["lr"])
            return 0.0

        for closure in (rate, _fails, rate):
            try:
                optimizer.step(closure)
            except ValueError:
                rates.clear()
        self.assertEqual(rates, [0.05, 0.05, 0.1])
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)


if __name__ == "__main__":
    unittest.main()
