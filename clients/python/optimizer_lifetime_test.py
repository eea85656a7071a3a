# SPDX-License-Identifier: Apache-2.0
"""What is left of a distributed optimizer that a program has dropped, in a job of one rank."""

from __future__ import annotations

import gc
import unittest
import weakref
from collections.abc import Callable
from typing import Any

import talweg
import talweg.byteps.torch as bps
import talweg.horovod.torch as hvd
import talweg.torch as tw
import torch
from talweg import _client
from torch import nn

_Make = Callable[[nn.Module, Any], Any]


def _plain(model: nn.Module, optimizer: Any) -> Any:
    return tw.DistributedOptimizer(optimizer, model.named_parameters())


def _patient(model: nn.Module, optimizer: Any) -> Any:
    return tw.DistributedOptimizer(optimizer, model.named_parameters(), patience=0.02)


def _overlapped(model: nn.Module, optimizer: Any) -> Any:
    return tw.DistributedOptimizer(optimizer, model.named_parameters(), overlap_forward=model)


def _of_horovod(model: nn.Module, optimizer: Any) -> Any:
    return hvd.DistributedOptimizer(optimizer, model.named_parameters())


def _of_byteps(model: nn.Module, optimizer: Any) -> Any:
    return bps.DistributedOptimizer(optimizer, model.named_parameters())


def _trained(make: _Make) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    optimizer = make(model, torch.optim.Adam(model.parameters()))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    return model, optimizer


def _weight(model: Any) -> nn.Parameter:
    weight: nn.Parameter = model[0].weight
    return weight


def _fails(_: torch.Tensor) -> None:
    raise ValueError


class LifetimeTest(unittest.TestCase):
    def setUp(self) -> None:
        hvd.init()
        self.addCleanup(talweg.shutdown)

    def test_nothing_is_left(self) -> None:
        for make in (_plain, _patient, _overlapped, _of_horovod, _of_byteps):
            with self.subTest(make=make.__name__):
                model, optimizer = _trained(make)
                left = [weakref.ref(each) for each in (model, _weight(model), optimizer)]
                averager = weakref.ref(optimizer._talweg)
                del model, optimizer
                gc.collect()
                gc.collect()  # torch keeps a parameter that others refer to in the first one.
                self.assertEqual([each() for each in left], [None] * 3)
                self.assertIsNone(averager())
                talweg.shutdown()  # The next one's tensors have other declarations.
                talweg.init()

    def test_the_end_of_an_optimizer_does_not_wait_for_the_garbage_collector(self) -> None:
        """Ranks collect garbage at different times, and must average the same gradients."""
        model, optimizer = _trained(_plain)
        gc.disable()
        self.addCleanup(gc.enable)
        pushed = talweg.pushed_bytes()
        del optimizer
        model(torch.ones(2, 6)).sum().backward()
        self.assertEqual(talweg.pushed_bytes(), pushed)

    def test_the_next_optimizer_has_the_same_name(self) -> None:
        """Even if nobody has waited for the averages of the last step."""
        for make in (_overlapped, _plain):
            with self.subTest(make=make.__name__):
                for _ in range(3):
                    model, optimizer = _trained(make)
                    del model, optimizer
                    gc.collect()
                talweg.shutdown()
                talweg.init()

    def test_large_gradients_that_are_left(self) -> None:
        for _ in range(2):
            model = nn.Linear(200, 200)
            optimizer = _overlapped(model, torch.optim.SGD(model.parameters(), lr=0.1))
            model(torch.ones(2, 200)).sum().backward()
            del model, optimizer
            gc.collect()
        self.assertTrue(_client.current().left)

    def test_a_failed_backward_is_ended_before_the_optimizer_is_distributed_anew(self) -> None:
        model, optimizer = _trained(_plain)
        with _weight(model).register_hook(_fails), self.assertRaises(ValueError):
            model(torch.ones(2, 6)).sum().backward()
        with self.assertRaisesRegex(talweg.InvalidArgument, "last backward.. has ended with an er"):
            _plain(model, optimizer)
        optimizer.synchronize()
        optimizer.zero_grad()
        optimizer = _plain(model, optimizer)
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    unittest.main()
