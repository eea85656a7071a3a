# SPDX-License-Identifier: Apache-2.0
"""Steps that wait for nobody: ranks are threads, in many orders of everything that they do."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from talweg._exchange import meetings
from talweg._exchange.meetings import Meetings, Phase
from talweg.errors import Aborted
from turns import Turns

# More are tried with TALWEG_SEEDS, from TALWEG_FIRST_SEED on.
_SEEDS = int(os.environ.get("TALWEG_SEEDS", "10"))
_FIRST_SEED = int(os.environ.get("TALWEG_FIRST_SEED", "0"))
# The most ranks. Number i counts the steps of rank i. The last number is random.
_RANKS_MAX = 4
_COUNT = _RANKS_MAX + 1


class _Rounds:
    """The rounds of all ranks: the sum is there when all that are not lost have given."""

    def __init__(self, turns: Turns, size: int) -> None:
        self.turns = turns
        self.size = size
        self.lost: set[int] = set()
        self.fails_at = -1  # The number of the round that ends with an error at all ranks.
        self._given: list[dict[int, np.ndarray]] = []
        self._begun = [0] * size

    def add_up(self, place: int, numbers: np.ndarray) -> None:
        number = self._begun[place]
        self._begun[place] += 1
        if number == len(self._given):
            self._given.append({})
        given = self._given[number]
        if place not in self.lost:
            given[place] = numbers.copy()
        self.turns.wait(
            lambda: place not in self.lost and given.keys() | self.lost >= set(range(self.size))
        )
        if number == self.fails_at:
            raise Aborted("a round has failed")
        shapes = {each.shape for each in given.values()}
        assert len(shapes) == 1, shapes
        numbers[...] = sum(given.values())


class _Ranks:
    def __init__(self, rounds: _Rounds, place: int) -> None:
        self._rounds = rounds
        self.size, self.place = rounds.size, place

    def add_up(self, numbers: np.ndarray) -> None:
        self._rounds.add_up(self.place, numbers)


class _Rank:
    """A rank whose steps move its parameters by whole numbers, so that sums are exact."""

    def __init__(self, rounds: _Rounds, place: int, ahead: int, lead: int | None) -> None:
        self.rounds, self.turns = rounds, rounds.turns
        self.place = place
        self.ahead = ahead
        self.own: np.ndarray = np.zeros(_COUNT)
        self.base: np.ndarray = np.zeros(_COUNT)
        self.moved: np.ndarray = np.zeros(_COUNT)  # By this rank's steps, in all.
        self.steps = 0
        self.has_left = False
        self.meetings = Meetings(_Ranks(rounds, place), np.zeros(_COUNT), ahead, lead)

    def merge(self, shared: np.ndarray, movement: np.ndarray) -> None:
        np.subtract(self.own, self.base, out=movement)
        self.own[...] = shared + movement
        self.base[...] = self.own

    def step(self, step_s: float) -> None:
        self.turns.wait(lambda: False, step_s)
        movement: np.ndarray = np.zeros(_COUNT)
        movement[self.place] = 1
        movement[-1] = self.turns.random.randrange(100)
        self.own += movement
        self.moved += movement
        self.steps += 1
        self.meetings.step(self.merge, step_s)
        lacking = self.moved[self.place] - self.meetings.shared[self.place]
        # Those of the movement that is under way, and all that may be made meanwhile but one: the
        # last one waits.
        assert 0 <= lacking <= max(0, 2 * self.ahead - 1), lacking

    def leave(self) -> None:
        self.has_left = True
        self.meetings.leave(self.merge)


class MeetingsTest(unittest.TestCase):
    def _run(
        self,
        seed: int,
        program: Callable[[_Rank, Sequence[_Rank]], None],
        ahead: int = 1,
        lead: int | None = None,
        fails: bool = False,
    ) -> list[_Rank]:
        turns = Turns(seed)
        with turns.patched(meetings):
            rounds = _Rounds(turns, turns.random.randint(2, _RANKS_MAX))
            if fails:
                rounds.fails_at = turns.random.randrange(12)
            ranks = [_Rank(rounds, place, ahead, lead) for place in range(rounds.size)]
            for rank in ranks:
                turns.start(f"rank {rank.place}", partial(program, rank, ranks))
            turns.run()
        return ranks

    def _all_alike(self, ranks: Sequence[_Rank]) -> None:
        moved = sum(rank.moved for rank in ranks)
        for rank in ranks:
            np.testing.assert_array_equal(rank.meetings.shared, moved)
            np.testing.assert_array_equal(rank.own, moved)
            self.assertIs(rank.meetings.phase, Phase.RESTING)

    def test_each_step_counts_once_at_each_rank(self) -> None:
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS):
            ahead = seed % 4

            def program(rank: _Rank, _: Sequence[_Rank]) -> None:
                dice = rank.turns.random
                for _life in range(2):
                    rank.meetings.start()
                    slowness = dice.choice((0.01, 0.1, 1.0))
                    for _step in range(dice.randrange(8)):
                        rank.step(slowness * dice.random())
                    rank.leave()

            with self.subTest(seed=seed):
                self._all_alike(self._run(seed, program, ahead))

    def test_lead(self) -> None:
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS):
            lead = seed % 3

            def program(rank: _Rank, ranks: Sequence[_Rank], lead: int = lead) -> None:
                dice = rank.turns.random
                rank.meetings.start()
                for _ in range(dice.randrange(1, 7)):
                    rank.step(dice.choice((0.01, 1.0)))
                    others = [r.steps for r in ranks if r is not rank and not r.has_left]
                    assert rank.steps - min(others, default=rank.steps) <= lead
                rank.leave()

            with self.subTest(seed=seed):
                self._all_alike(self._run(seed, program, lead=lead))

    def test_nobody_waits_for_a_slow_rank(self) -> None:
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS):
            ended: dict[int, float] = {}

            def program(rank: _Rank, _: Sequence[_Rank], ended: dict[int, float] = ended) -> None:
                rank.meetings.start()
                for _step in range(2 if rank.place == 0 else 40):
                    rank.step(5.0 if rank.place == 0 else 0.1)
                ended[rank.place] = rank.turns.now
                rank.leave()

            with self.subTest(seed=seed):
                self._all_alike(self._run(seed, program))
                slow_s = ended.pop(0)
                self.assertGreaterEqual(slow_s, 10.0)
                # A meeting waits for half a step, and so a rank never waits for its movement.
                self.assertLess(max(ended.values()), 4.2)

    def test_a_meeting_fails(self) -> None:
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS):

            def program(rank: _Rank, _: Sequence[_Rank]) -> None:
                rank.meetings.start()
                try:
                    for _step in range(30):
                        rank.step(0.1)
                    rank.leave()
                except Aborted:
                    assert rank.meetings.phase is Phase.RESTING
                else:
                    raise AssertionError("no error")
                # As the agreement does.
                rank.moved[...] = rank.own[...] = rank.base[...] = rank.meetings.shared[...] = 0
                rank.meetings.start()
                rank.step(0.1)
                rank.leave()

            with self.subTest(seed=seed):
                self._all_alike(self._run(seed, program, fails=True))

    def test_a_rank_is_lost(self) -> None:
        """The others go on without it, have the same, and do not wait for it."""
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS):

            def program(rank: _Rank, _: Sequence[_Rank]) -> None:
                rank.meetings.start()
                for _step in range(10):
                    rank.step(1.0)
                    if rank.place == 0 and rank.steps == 4:
                        rank.rounds.lost.add(0)
                        return
                rank.leave()

            with self.subTest(seed=seed):
                ranks = self._run(seed, program, lead=2)
                for rank in ranks[1:]:
                    np.testing.assert_array_equal(rank.own, ranks[1].own)
                    self.assertLessEqual(rank.own[0], 4)
                    self.assertEqual(rank.own[rank.place], 10)


if __name__ == "__main__":
    unittest.main()
