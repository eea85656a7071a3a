# SPDX-License-Identifier: Apache-2.0
"""talweg.torch.ElasticLoader: a DataLoader over what an ElasticSampler deals."""

from __future__ import annotations

import unittest
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import talweg
import talweg.torch
import torch
from talweg import _client
from torch.utils.data import DataLoader, Dataset

# With and without workers, which read ahead.
_WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"num_workers": 1},
    {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
)


class _Squares(Dataset[tuple[int, torch.Tensor]]):
    """A sample is its number and the square of it."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor(float(index**2))


class _Rank:
    """One of several ranks that this process makes the steps of, by turns."""

    def __init__(self, place: int, size: int, count: int, options: dict[str, Any]) -> None:
        self.sampler = talweg.ElasticSampler(count, batch_size=2, seed=5)
        self.sampler.deal(place, size)
        self.loader = talweg.torch.ElasticLoader(_Squares(count), self.sampler, **options)
        self.batches: Iterator[Any] = iter(self.loader)

    def take(self) -> list[int] | None:
        """The samples of its next batch that are its own; None: the epoch is over."""
        batch = next(self.batches, None)
        if batch is None:
            return None
        numbers, squares = batch
        assert torch.equal(squares, numbers.float() ** 2)
        assert len(numbers) == max(self.sampler.own_samples, 1)
        return numbers.tolist() if self.sampler.own_samples else []


class LoaderTest(unittest.TestCase):
    def _take(self, ranks: list[_Rank]) -> list[list[int]]:
        batches = [rank.take() for rank in ranks]
        self.assertNotIn(None, batches)
        return [batch for batch in batches if batch is not None]

    def test_each_sample_once_whoever_comes_and_goes(self) -> None:
        for options in _WAYS:
            with self.subTest(options=options):
                ranks = [_Rank(place, 3, 29, options) for place in range(3)]
                taken: Counter[int] = Counter()
                for step in range(2):
                    batches = self._take(ranks)
                    # In the second step rank 1 is lost, with what it has taken.
                    ended = [True, step == 0, True]
                    for has_ended, batch in zip(ended, batches):
                        taken.update(batch if has_ended else [])
                    for rank in ranks:
                        rank.sampler.end_step(ended)
                del ranks[1]
                for place, rank in enumerate(ranks):
                    rank.sampler.deal(place, 2)
                for batch in self._take(ranks):
                    taken.update(batch)
                for rank in ranks:
                    rank.sampler.end_step(None)
                joiner = _Rank(0, 3, 29, options)
                joiner.sampler.load_state_dict(ranks[0].sampler.state_dict())
                ranks.insert(0, joiner)
                for place, rank in enumerate(ranks):
                    rank.sampler.deal(place, 3)
                while ranks[0].sampler.left:
                    for batch in self._take(ranks):
                        taken.update(batch)
                    for rank in ranks:
                        rank.sampler.end_step(None)
                self.assertEqual([rank.take() for rank in ranks], [None] * 3)
                self.assertEqual(taken, Counter(range(29)))

    def test_a_rank_takes_the_place_of_a_lost_one(self) -> None:
        for options in _WAYS:
            with self.subTest(options=options):
                ranks = [_Rank(place, 2, 9, options) for place in range(2)]
                taken = Counter(self._take(ranks)[0])
                for rank in ranks:
                    rank.sampler.end_step([True, False])
                    rank.sampler.deal(ranks.index(rank), 2)
                while ranks[0].sampler.left:
                    for batch in self._take(ranks):
                        taken.update(batch)
                    for rank in ranks:
                        rank.sampler.end_step(None)
                self.assertEqual(taken, Counter(range(9)))

    def test_all_epochs_of_a_program_that_nobody_has_launched(self) -> None:
        for options in _WAYS:
            with self.subTest(options=options):
                talweg.init()
                try:
                    sampler = talweg.ElasticSampler(7, batch_size=2)
                    state = talweg.State(sampler=sampler)
                    loader = talweg.torch.ElasticLoader(_Squares(7), sampler, **options)
                    state.begin()
                    for epoch in range(2):
                        self.assertEqual(len(loader), 4)
                        taken: list[int] = []
                        for numbers, _ in loader:
                            taken += numbers.tolist()
                            state.end_step()
                        self.assertEqual(sorted(taken), list(range(7)))
                        sampler.set_epoch(epoch + 1)
                finally:
                    talweg.shutdown()

    def test_a_rank_without_a_sample_counts_nothing(self) -> None:
        for options in _WAYS[:2]:
            with self.subTest(options=options):
                rank = _Rank(2, 3, 7, options)
                for own in (2, 0):
                    numbers, _ = next(rank.batches)
                    self.assertEqual(len(numbers), own or 1)
                    client = SimpleNamespace(rank=2, size=3)
                    state = talweg.torch.Elastic(sampler=rank.sampler)
                    with mock.patch.object(_client, "current", return_value=client):
                        self.assertEqual(state.weight, 1.0 if own else 0.0)
                    rank.sampler.end_step(None)
                self.assertIsNone(next(rank.batches, None))

    def test_a_step_that_has_not_ended(self) -> None:
        rank = _Rank(0, 1, 7, {"num_workers": 1})
        next(rank.batches)
        with self.assertRaisesRegex(talweg.InvalidArgument, "call end_step"):
            next(rank.batches)
        numbers, _ = next(iter(rank.loader))  # Another iteration begins with it.
        self.assertEqual((rank.sampler.left, rank.sampler.own_samples), (7, len(numbers)))

    def test_what_does_not_go_with_it_is_refused(self) -> None:
        sampler = talweg.ElasticSampler(7, batch_size=2)
        for workers in (0, 1):
            with self.assertRaisesRegex(talweg.InvalidArgument, "talweg.torch.ElasticLoader.data"):
                list(DataLoader(_Squares(7), batch_sampler=sampler, num_workers=workers))
            for options in ({"batch_size": 4}, {"batch_size": None}):
                of: Any = {"sampler": sampler, "num_workers": workers, **options}
                with self.assertRaisesRegex(talweg.InvalidArgument, "talweg.torch.ElasticLoader"):
                    list(DataLoader(_Squares(7), **of))
        for option in ({"batch_size": 2}, {"shuffle": True}, {"in_order": False}):
            with self.assertRaisesRegex(talweg.InvalidArgument, "leave it out"):
                talweg.torch.ElasticLoader(_Squares(7), sampler, **option)
        with self.assertRaisesRegex(talweg.InvalidArgument, "7 samples, and the dataset has 8"):
            talweg.torch.ElasticLoader(_Squares(8), sampler)


if __name__ == "__main__":
    unittest.main()
