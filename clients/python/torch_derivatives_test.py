# SPDX-License-Identifier: Apache-2.0
"""Derivatives in forward mode, and tensors that transforms have wrapped, in a job of one rank."""

from __future__ import annotations

import ctypes
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import talweg
import talweg.torch as tw
import torch
from talweg import _client
from torch import nn
from torch.autograd import forward_ad

_X = (1.0, 2.0, 3.0)


def _square(x: torch.Tensor) -> torch.Tensor:
    return tw.push_pull(x, "x", op=tw.Op.SUM) ** 2


class _Job(unittest.TestCase):
    def setUp(self) -> None:
        tw.init()
        self.addCleanup(talweg.shutdown)
        self.x = torch.tensor(_X)


class ForwardModeTest(_Job):
    def test_jvp(self) -> None:
        _, tangent = torch.func.jvp(_square, (self.x,), (torch.full((3,), 2.0),))
        self.assertEqual(tangent.tolist(), [4.0, 8.0, 12.0])

    def test_dual_tensors(self) -> None:
        for requires_grad in (False, True):
            x = self.x.clone().requires_grad_(requires_grad)
            with forward_ad.dual_level():
                result = _square(forward_ad.make_dual(x, torch.ones(3)))
                tangent = forward_ad.unpack_dual(result).tangent
            self.assertEqual(tangent.tolist(), [2.0, 4.0, 6.0])

    def test_the_derivative_of_a_gradient(self) -> None:
        def gradient(x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.func.grad(lambda each: _square(each).sum())(x)
            return found

        _, tangent = torch.func.jvp(gradient, (self.x,), (torch.ones(3),))
        self.assertEqual(tangent.tolist(), [2.0] * 3)

    def test_a_tensor_without_a_tangent(self) -> None:
        with forward_ad.dual_level():
            result = _square(self.x)
            self.assertIsNone(forward_ad.unpack_dual(result).tangent)
        _, tangent = torch.func.jvp(lambda x: _square(torch.ones_like(x)), (self.x,), (self.x,))
        self.assertEqual(tangent.tolist(), [0.0] * 3)

    def test_what_cannot_be_is_refused(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Parts of torch are deprecated that this call uses.
            with self.assertRaisesRegex(talweg.Unsupported, "'x': .* use torch.func.jvp"):
                torch.func.linearize(_square, self.x)
        with self.assertRaisesRegex(talweg.InvalidArgument, "the max has no gradient"):
            torch.func.jvp(lambda x: tw.push_pull(x, "y", op=tw.Op.MAX), (self.x,), (self.x,))


class WrappedTensorsTest(_Job):
    def test_calls_under_a_transform(self) -> None:
        calls: tuple[Callable[[Any], Any], ...] = (
            lambda x: tw.all_gather(x, name="gather"),
            lambda x: tw.broadcast(x, name="broadcast"),
            lambda x: tw.push_pull_async(x, "async"),
            lambda x: tw.push_pull_inplace(x.clone(), "in place"),
            lambda x: tw.grouped_push_pull([x], "grouped"),
        )
        for call in calls:
            with self.assertRaisesRegex(talweg.InvalidArgument, "torch.func .* Make this call out"):
                torch.func.grad(call)(self.x)

    def test_batched_gradients(self) -> None:
        x = self.x.requires_grad_()
        result = tw.push_pull(x, "x", op=tw.Op.SUM)
        with self.assertRaisesRegex(talweg.InvalidArgument, "is_grads_batched"):
            torch.autograd.grad(result, x, torch.eye(3), is_grads_batched=True)


class NegativeViewsTest(_Job):
    def test_gradients_that_are_negative_views(self) -> None:
        for patience in (None, 0.02):
            parameter = nn.Parameter(torch.zeros(4))
            optimizer = tw.DistributedOptimizer(
                torch.optim.SGD([parameter], lr=1.0), name=f"of {patience}", patience=patience
            )
            parameter.grad = torch._neg_view(torch.ones(4))
            assert parameter.grad.is_neg()
            optimizer.step()
            self.assertEqual(parameter.tolist(), [1.0] * 4)

    def test_what_patience_pushes(self) -> None:
        """In a job of one rank the wrong values would come back with the right signs."""
        pushed = []

        def watch(declared: Any, address: int) -> None:
            if declared.name.endswith("parameter.0"):
                pushed.append(ctypes.c_float.from_address(address).value)

        _client.current().push_watchers.append(watch)
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = tw.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), patience=0.02)
        parameter.grad = torch._neg_view(torch.ones(1))
        optimizer.step()
        self.assertEqual((pushed, parameter.tolist()), ([-1.0], [1.0]))


if __name__ == "__main__":
    unittest.main()
