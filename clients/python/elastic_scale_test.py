# SPDX-License-Identifier: Apache-2.0
"""talweg.torch.Elastic(scale="global_batch"): each sample counts as much as it did at first."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import talweg
import talweg.torch
import torch
from talweg import _client

_LR = 0.5
_BATCH = 4


class _Rank:
    """One of several ranks that this process makes the steps of, by turns."""

    def __init__(self, rank: int, size: int) -> None:
        self.client = SimpleNamespace(rank=rank, size=size, companion=lambda _: self)
        self.weights = torch.nn.Linear(3, 1, bias=False).double()
        torch.nn.init.ones_(self.weights.weight)
        self.optimizer = torch.optim.SGD(self.weights.parameters(), lr=_LR)
        self.sampler = talweg.ElasticSampler(30, batch_size=_BATCH, seed=1)
        self.state = talweg.torch.Elastic(
            self.weights, self.optimizer, scale="global_batch", sampler=self.sampler
        )
        with self._is_current():
            self.state.begin()

    # As a membership.

    begins_anew = False
    change = None

    def begin(self, holder: object) -> bool:
        return False

    def _is_current(self) -> Any:
        return mock.patch.object(_client, "current", return_value=self.client)

    def backward(self, inputs: torch.Tensor) -> list[int]:
        """The gradient of its share of the step; which samples are in it."""
        indices = next(iter(self.sampler))
        self.optimizer.zero_grad()
        with self._is_current():
            losses = self.weights(inputs[indices]).square()
            (losses.sum() / max(len(indices), 1) * self.state.weight).backward()
        return indices

    def step(self, average: torch.Tensor, ended: list[bool] | None) -> None:
        self.weights.weight.grad = average.clone()
        self.optimizer.step()
        self.sampler.end_step(ended)

    def goes_on_as(self, rank: int, size: int) -> None:
        self.client.rank, self.client.size = rank, size
        self.sampler.deal(rank, size)


class ScaleTest(unittest.TestCase):
    def test_a_loss_and_a_short_step(self) -> None:
        inputs = torch.randn(30, 3, generator=torch.Generator().manual_seed(2)).double()
        ranks = [_Rank(rank, 3) for rank in range(3)]
        weights = torch.ones(1, 3).double()
        sizes = []
        while ranks[0].sampler.left:
            taken = [rank.backward(inputs) for rank in ranks]
            gradients = [rank.weights.weight.grad for rank in ranks]
            average = torch.stack([each for each in gradients if each is not None]).mean(0)
            for rank in ranks:
                rank.step(average, None)
            # The full step of the job's beginning has the rate of the optimizer.
            indices = [index for each in taken for index in each]
            outputs = inputs[indices] @ weights.T
            weights = weights - _LR / (3 * _BATCH) * (2 * outputs * inputs[indices]).sum(0)
            for rank in ranks:
                torch.testing.assert_close(rank.weights.weight.detach(), weights)
                self.assertEqual(rank.optimizer.param_groups[0]["lr"], _LR)
            sizes.append(len(indices))
            if len(sizes) == 1:  # A node is lost; the others have its samples as well.
                ranks = [ranks[0], ranks[2]]
                for place, rank in enumerate(ranks):
                    rank.goes_on_as(place, 2)
        self.assertEqual(sizes, [12, 8, 8, 2])

    def test_a_rank_that_begins_again(self) -> None:
        """As all do where a call needed a rank that is gone: of the job's beginning is what counts."""
        rank = _Rank(0, 3)
        rank.goes_on_as(0, 2)
        with rank._is_current():
            rank.state.begin()
        self.assertEqual(rank.state.full_step, 3 * _BATCH)

    def test_it_needs_a_sampler(self) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.assertRaisesRegex(talweg.InvalidArgument, "needs an ElasticSampler"):
            talweg.torch.Elastic(model, optimizer, scale="global_batch")
        with self.assertRaisesRegex(talweg.InvalidArgument, "it is None or"):
            talweg.torch.Elastic(model, optimizer, scale="batch")

    def test_the_optimizer_ends_no_steps(self) -> None:
        """What a program changes after its optimizer's step would come to a joiner one step late."""
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.assertRaisesRegex(talweg.InvalidArgument, "call end_step.. where a step ends"):
            talweg.torch.Elastic(model, optimizer, ends_steps=True, step=0)


if __name__ == "__main__":
    unittest.main()
