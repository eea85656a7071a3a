# SPDX-License-Identifier: Apache-2.0
"""What ElasticSampler deals, against a plain rule, and how many samples it touches for that."""

from __future__ import annotations

import random
import unittest
from typing import Any, cast

import numpy as np
import talweg
from talweg._elastic.samples import Samples

_COUNT = 500
_BATCH = 3


class _Rule:
    """The rule in few words: lists of what is left and of what is dealt."""

    def __init__(self, left: list[int]) -> None:
        self.left = left
        self.dealt: list[list[int]] = []

    def deal(self, size: int) -> None:
        count = min(_BATCH * size, len(self.left))
        each, more = divmod(count, size)
        self.dealt = []
        for rank in range(size):
            samples = each + (rank < more)
            self.dealt.append(self.left[:samples])
            self.left = self.left[samples:]

    def end_step(self, ended: list[bool] | None) -> None:
        lost = [ended is not None and not has_ended for has_ended in ended or [True] * 99]
        again = [index for batch, is_lost in zip(self.dealt, lost) if is_lost for index in batch]
        self.left = again + self.left
        self.dealt = []


class _Counting(list[int]):
    """Counts the samples that are read or written."""

    touched = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.touched += len(found) if isinstance(key, slice) else 1
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self.touched += len(value) if isinstance(key, slice) else 1
        super().__setitem__(key, value)


class SamplesTest(unittest.TestCase):
    def test_losses_and_joins(self) -> None:
        for seed in range(20):
            chance = random.Random(seed)
            sampler = talweg.ElasticSampler(_COUNT, _BATCH, seed=seed)
            rule = _Rule(sampler.state_dict()["left"])
            size = chance.randint(1, 6)
            sampler.deal(chance.randrange(size), size)
            steps = iter(sampler)
            while rule.left:
                batch = next(steps)
                rule.deal(size)
                self.assertIn(batch, rule.dealt)
                self.assertEqual(sampler.step_samples, sum(map(len, rule.dealt)))
                if chance.random() < 0.1:  # The step is begun again.
                    steps = iter(sampler)
                    rule.end_step([False] * size)
                    continue
                ended = [chance.random() < 0.8 for _ in range(size)]
                told = None if chance.random() < 0.5 else ended
                sampler.end_step(told)
                rule.end_step(told)
                self.assertEqual(sampler.left, len(rule.left))
                self.assertEqual(sampler.state_dict()["left"], rule.left)
                if chance.random() < 0.2:
                    size = chance.randint(1, 6)
                    sampler.deal(chance.randrange(size), size)
                if chance.random() < 0.1:
                    state = sampler.state_dict()
                    sampler = talweg.ElasticSampler(_COUNT, _BATCH)
                    sampler.load_state_dict(state)
                    sampler.deal(0, size)
                    steps = iter(sampler)
            self.assertEqual(list(steps), [])

    def test_batches_ahead(self) -> None:
        sampler = talweg.ElasticSampler(_COUNT, _BATCH)
        sampler.deal(1, 4)
        steps, ahead = iter(sampler), sampler.ahead()
        for _ in range(10):
            self.assertEqual(next(steps), next(ahead))
            sampler.end_step(None)
        next(steps)
        self.assertEqual(next(sampler.ahead()), next(ahead))

    def test_a_step_costs_what_it_deals(self) -> None:
        sampler = talweg.ElasticSampler(1, _BATCH)
        order = _Counting(range(100_000))
        sampler._left = Samples(order)
        sampler.deal(0, 4)
        steps, ahead = iter(sampler), sampler.ahead()
        for step in range(100):
            next(steps)
            next(ahead)
            sampler.end_step([step % 3 > 0, True, True, True])
        # Each step deals 12 samples, ahead() as many, and a third of the steps gives 3 back.
        self.assertLess(order.touched, 100 * 2 * 12 + 100 * 3)

    def test_more_than_were_taken_do_not_come_back(self) -> None:
        samples = Samples([1, 2, 3])
        samples.take(1)
        with self.assertRaisesRegex(ValueError, "2 samples come back, and 1 have been taken"):
            samples.give_back([4, 5])


class ArgumentsTest(unittest.TestCase):
    def test_numbers_of_other_libraries(self) -> None:
        for length in (np.int64(7), range(7), "abcdefg"):
            self.assertEqual(
                talweg.ElasticSampler(cast(Any, length), cast(Any, np.int32(2))).left, 7
            )

    def test_what_is_no_number_is_refused(self) -> None:
        for length, options, text in (
            (2.5, {}, r"ElasticSampler\(2.5\): it is the number of samples, or a sequence"),
            (7, {"batch_size": 2.5}, "batch_size. is 2.5; it must be a whole number"),
            (7, {"batch_size": "3"}, "batch_size. is '3'; it must be a whole number"),
            (7, {"batch_size_max": 4.0, "balance": True}, "batch_size_max. is 4.0"),
        ):
            with self.assertRaisesRegex(talweg.InvalidArgument, text):
                talweg.ElasticSampler(cast(Any, length), **cast(Any, options))


if __name__ == "__main__":
    unittest.main()
