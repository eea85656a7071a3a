# SPDX-License-Identifier: Apache-2.0
"""Batches in proportion to speed: the shares, and what a rank tells of its speed."""

from __future__ import annotations

import random
import unittest
from collections.abc import Callable, Sequence

from talweg._elastic.shares import STEPS, OwnPace, Shares, split

_MS = 1_000_000


def _places(count: int) -> list[tuple[int, int]]:
    return [(number, 0) for number in range(count)]


def _shares(count: int, batch: int, most: int | None = None) -> Shares:
    shares = Shares(batch, most or 2 * batch)
    shares.deal(_places(count))
    return shares


class SplitTest(unittest.TestCase):
    def test_random_weights_and_bounds(self) -> None:
        for seed in range(500):
            draw = random.Random(seed)
            count = draw.randrange(1, 20)
            weights = [draw.randrange(1, 1 << draw.choice((1, 4, 40))) for _ in range(count)]
            least = [draw.randrange(0, 5) for _ in range(count)]
            most = [low + draw.randrange(0, 30) for low in least]
            total = draw.randint(sum(least), sum(most))
            parts = split(total, weights, least, most)
            with self.subTest(seed=seed):
                self.assertEqual(sum(parts), total)
                for part, low, high in zip(parts, least, most):
                    self.assertTrue(low <= part <= high)
                # No rank that could have less has more, beyond rounding, than one that could have
                # more.
                over = max(
                    ((p - 1) / w for p, w, low in zip(parts, weights, least) if p > low), default=0
                )
                under = min(
                    ((p + 1) / w for p, w, high in zip(parts, weights, most) if p < high),
                    default=over + 1,
                )
                self.assertLess(over, under)
                self.assertEqual(parts, split(total, weights, least, most))

    def test_the_largest_remainder(self) -> None:
        for total, weights, expected in (
            (10, [1, 1, 1], [4, 3, 3]),
            (3, [5, 5, 5, 5], [1, 1, 1, 0]),
            (10, [3, 3, 4], [3, 3, 4]),
            (64, [2, 1], [43, 21]),
            (11, [60, 27, 13], [7, 3, 1]),  # 6.60, 2.97 and 1.43.
        ):
            count = len(weights)
            self.assertEqual(split(total, weights, [0] * count, [total] * count), expected)


class SharesTest(unittest.TestCase):
    def _run(
        self, shares: Shares, time_of: Callable[[int, int], float], rounds: int = 40
    ) -> list[list[int]]:
        """Returns the shares after each round of times. `time_of` says how long so many samples
        take a rank.
        """
        total, batch = sum(shares.by_rank), sum(shares.by_rank) // len(shares.by_rank)
        seen = [list(shares.by_rank)]
        for _ in range(rounds):
            own = [time_of(rank, count) for rank, count in enumerate(shares.by_rank)]
            times = [max(1, int(each / n)) for each, n in zip(own, shares.by_rank)]
            has_changed = shares.on_times(times, int(max(own)))
            before, after = seen[-1], list(shares.by_rank)
            self.assertEqual(has_changed, before != after)
            self.assertEqual(sum(after), total)
            for old, new in zip(before, after):
                self.assertTrue(1 <= new <= 2 * batch)
                self.assertTrue(old <= 2 * new and new <= 2 * old, (old, new))
            seen.append(after)
        return seen

    def _changes(self, seen: Sequence[list[int]]) -> int:
        return sum(before != after for before, after in zip(seen, seen[1:]))

    def test_random_speeds_converge(self) -> None:
        for seed in range(100):
            with self.subTest(seed=seed):
                self._converge(random.Random(seed))

    def _converge(self, draw: random.Random) -> None:
        count, batch = draw.randrange(2, 17), draw.randrange(16, 65)
        sample = [draw.uniform(1, draw.choice((1.05, 2, 6))) * _MS for _ in range(count)]
        fixed = draw.choice((0, 0, 5, 50)) * _MS

        def time_of(rank: int, n: int) -> float:
            return fixed + sample[rank] * n

        seen = self._run(_shares(count, batch), time_of)
        last = seen[-1]
        self.assertEqual(seen[-2], last)
        self.assertLessEqual(self._changes(seen), 15)
        speeds = [int(2**40 / each) for each in sample]
        best = split(sum(last), speeds, [1] * count, [2 * batch] * count)
        least = max(time_of(rank, n) for rank, n in enumerate(best))
        longest = max(time_of(rank, n) for rank, n in enumerate(last))
        self.assertLessEqual(longest, least * 1.15 + max(sample))

    def test_a_share_at_most_doubles_at_once(self) -> None:
        shares = _shares(8, 8, most=64)
        times = [100 * _MS] * 7 + [_MS]
        seen = [shares.by_rank[-1] for _ in range(3) if shares.on_times(times, 800 * _MS)]
        self.assertEqual(seen, [16, 32, 46])  # The others keep at least one half.

    def test_half_as_fast(self) -> None:
        seen = self._run(_shares(2, 32), lambda rank, n: (1 + rank) * n * _MS)
        self.assertEqual(seen[1:], [[43, 21]] * (len(seen) - 1))

    def test_the_largest_batch_bounds(self) -> None:
        shares = _shares(4, 8, most=9)
        self._run(shares, lambda rank, n: (9 if rank == 2 else 1) * n * _MS)
        self.assertEqual(shares.by_rank, [9, 9, 5, 9])

    def test_no_rank_is_left_without_a_sample(self) -> None:
        shares = _shares(3, 4)
        self._run(shares, lambda rank, n: (1000 if rank == 0 else 1) * n * _MS)
        self.assertEqual(shares.by_rank, [1, 6, 5])
        one = _shares(5, 1)
        self._run(one, lambda rank, n: (9 if rank == 2 else 1) * n * _MS)
        self.assertEqual(one.by_rank, [1] * 5)

    def test_work_that_grows_faster_than_samples_does_not_swing(self) -> None:
        seen = self._run(_shares(2, 32), lambda rank, n: (1 + rank) * n * n * _MS, rounds=100)
        self.assertLessEqual(self._changes(seen), 4)
        fast, slow = seen[-1]
        self.assertLess(max(fast**2, 2 * slow**2), 2 * 32**2 * 0.75)

    def test_a_rank_that_is_fast_again(self) -> None:
        shares = _shares(2, 32)
        self._run(shares, lambda rank, n: (1 + rank) * n * _MS)
        self._run(shares, lambda rank, n: n * _MS)
        self.assertLessEqual(max(shares.by_rank), 35)

    def test_a_step_that_is_bound_by_something_else(self) -> None:
        """Other shares would shorten the step by 3 %, not by the third that the ranks' times tell."""
        shares = _shares(2, 32)
        self.assertFalse(shares.on_times([_MS, 2 * _MS], 64 * 10 * _MS))
        self.assertTrue(shares.on_times([_MS, 2 * _MS], 64 * _MS))

    def test_equal_ranks_under_noise_keep_equal_shares(self) -> None:
        for count, noise in ((2, 0.10), (8, 0.10), (64, 0.05)):
            draw = random.Random(count)
            shares, paces = _shares(count, 32), [OwnPace() for _ in range(count)]
            for _ in range(STEPS * 60):
                for pace, n in zip(paces, shares.by_rank):
                    own = n * _MS * max(0.1, draw.gauss(1, noise))
                    if draw.random() < 0.1:
                        own *= 10  # A pause of the machine.
                    pace.on_step(int(own), int(own), n)
                told = [pace.told_ns for pace in paces]
                if all(sample for sample, _ in told):
                    has_changed = shares.on_times([s for s, _ in told], max(t for _, t in told))
                    self.assertFalse(has_changed, (count, shares.by_rank))
                    for pace in paces:
                        pace.begin_anew(has_changed)

    def test_a_loss_and_a_joiner(self) -> None:
        shares = _shares(4, 32)
        shares.on_times([_MS, _MS, 2 * _MS, _MS], 64 * _MS)
        self.assertEqual(shares.by_rank, [37, 37, 18, 36])
        # Node 0 is lost. The others' shares keep their proportions.
        self.assertTrue(shares.deal(_places(4)[1:]))
        self.assertEqual(shares.by_rank, [39, 19, 38])
        self.assertFalse(shares.deal(_places(4)[1:]))
        # Node 9 joins: it gets what the others have on average.
        shares.deal([*_places(4)[1:], (9, 0)])
        self.assertEqual(shares.by_rank, [39, 19, 38, 32])

    def test_a_joiner_that_was_told_deals_as_the_others(self) -> None:
        for seed in range(50):
            draw = random.Random(seed)
            one = _shares(draw.randrange(1, 6), 8)
            for _ in range(30):
                other = Shares(8, 16)
                other.state = one.state
                places = [place for place in one._places if draw.random() < 0.9]
                if draw.random() < 0.5 or not places:
                    places.insert(0, (draw.randrange(10, 99), 0))
                places = list(dict.fromkeys(places))
                for each in (one, other):
                    each.deal(places)
                self.assertEqual(one.by_rank, other.by_rank)
                times = [draw.randrange(1, 5) * _MS for _ in places]
                for each in (one, other):
                    each.on_times(times, 1)
                self.assertEqual((one.by_rank, one.state), (other.by_rank, other.state))
                self.assertEqual(sum(one.by_rank), 8 * len(places))

    def test_the_rest_of_an_epoch(self) -> None:
        shares = _shares(3, 8)
        shares.on_times([_MS, _MS, 4 * _MS], 32 * _MS)
        self.assertEqual(shares.by_rank, [10, 10, 4])
        for count, expected in ((12, [5, 5, 2]), (3, [1, 1, 1]), (2, [1, 1, 0]), (1, [1, 0, 0])):
            self.assertEqual(shares.of_rest(count), expected)


class OwnPaceTest(unittest.TestCase):
    def test_the_median_of_the_steps_after_the_first(self) -> None:
        pace = OwnPace()
        pace.on_step(10**12, 10**12, 4)
        for step in range(STEPS):
            self.assertEqual(pace.told_ns, (0, 0))
            is_odd = step % 4 == 0
            pace.on_step(10**12 if is_odd else 800, 1000, 4)
        self.assertEqual(pace.told_ns, (200, 1000))
        pace.begin_anew(skips=False)
        self.assertEqual(pace.told_ns, (0, 0))


if __name__ == "__main__":
    unittest.main()
