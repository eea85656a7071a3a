# SPDX-License-Identifier: Apache-2.0
"""Calls that ranks compare before they make them: ranks are threads, in many orders of all they do."""

from __future__ import annotations

import os
import random
import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from model_rounds import Rounds
from talweg._client.handles import Handle, Nameless
from talweg._collectives import callers, channels, collectives, compared
from talweg._collectives.call_channel import channel_named
from talweg._collectives.kinds import ALL_REDUCE, OWN, WHOLE, Given, Rows
from talweg._collectives.process_sets import Group
from talweg._declaration import Declaration, DType, Op
from talweg._library import native
from talweg.errors import Aborted, Mismatch, TalwegError
from turns import Turns

# More are tried with TALWEG_SEEDS, from TALWEG_FIRST_SEED on.
_SEEDS = int(os.environ.get("TALWEG_SEEDS", "40"))
_FIRST_SEED = int(os.environ.get("TALWEG_FIRST_SEED", "0"))
_DECLARATIONS = [Declaration(DType.U8, count, Op.SUM, 0) for count in (3, 4, 9 << 20)]


@dataclass(eq=False)
class _Gather(Handle):
    """Stands for the data's round: what each rank has given."""

    bytes_each: int = 0

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        every: np.ndarray = np.zeros(self.client.size, np.uint64)
        connection.wait_parts(self.tensor, self.round, int(every.ctypes.data), every.nbytes)
        self.result = every.tolist()


class _Rank:
    """It makes its calls, and takes their results in an order of its own."""

    def __init__(self, client: Any, plan: Sequence[Declaration], draw: random.Random) -> None:
        self.results: list[Any] = [None] * len(plan)
        self.nameless = Nameless()
        self._client = client
        self._plan = plan
        self._draw = draw
        self._comparisons = compared.Comparisons(client)
        client.companion = lambda kind: self._comparisons
        client.finish = self._finish

    def _finish(self, handle: Handle, timeout_s: float | None) -> Any:
        handle.take(self._client.connection, timeout_s)
        return handle.result

    def run(self) -> None:
        open_: list[tuple[int, Handle]] = []
        for call, declaration in enumerate(self._plan):
            is_async = self._draw.random() < 0.7
            open_.append((call, self._start(call, declaration, is_async)))
            if not is_async or len(open_) == 2:  # As many as the fewest turns.
                self._draw.shuffle(open_)
                while open_:
                    self._take(*open_.pop())
        self._comparisons.finish()
        while open_:
            self._take(*open_.pop())

    def _start(self, call: int, declaration: Declaration, is_async: bool) -> Handle:
        client = self._client
        rows = Rows("uint8", (declaration.count,), declaration.nbytes)
        given = Given(
            ALL_REDUCE, 0, rows, [1], 0, None, lambda rows, counts: (None, 0), Op.SUM, DType.U8
        )
        channel = channel_named(client, "calls", Group(client, None, "push_pull"), "calls")

        def make() -> Handle:
            name = self.nameless.take_turn("sum", declaration)
            data = np.array([call], np.uint64).tobytes()
            shares = (OWN, WHOLE)
            tensor = client.connection.declare_collective(
                name, DType.U8, Op.BROADCAST, shares, 0, (), len(data)
            )
            return _Gather(client, tensor, client.connection.push_parts(tensor, data, [8]), name)

        return compared.start(client, channel, given, 0, is_async, make)

    def _take(self, call: int, handle: Handle) -> None:
        try:
            self.results[call] = self._finish(handle, None)
        except TalwegError as failure:
            self.results[call] = failure


class ComparedTest(unittest.TestCase):
    def _try(self, run: Callable[[Turns], None]) -> None:
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS):
            turns = Turns(seed)
            with self.subTest(seed=seed), turns.patched(callers, channels, collectives, compared):
                run(turns)

    def _ranks(self, turns: Turns, plans: Sequence[Sequence[Declaration]]) -> list[_Rank]:
        rounds = Rounds(turns, len(plans), on_one_node=False)
        ranks = [
            _Rank(client, plan, random.Random(turns.random.random()))
            for client, plan in zip(rounds.clients, plans)
        ]
        for number, rank in enumerate(ranks):
            turns.start(f"rank {number}", rank.run)
        return ranks

    def test_ranks_that_differ_are_told_and_go_on(self) -> None:
        def run(turns: Turns) -> None:
            draw = turns.random
            size, calls = draw.randrange(2, 5), draw.randrange(1, 12)
            plan = [draw.choice(_DECLARATIONS) for _ in range(calls)]
            plans = [list(plan) for _ in range(size)]
            for _ in range(draw.randrange(3)):
                plans[draw.randrange(size)][draw.randrange(calls)] = draw.choice(_DECLARATIONS)
            ranks = self._ranks(turns, plans)
            turns.run()
            for call in range(calls):
                counts = {each[call].count for each in plans}
                for rank in ranks:
                    result = rank.results[call]
                    if len(counts) == 1:
                        self.assertEqual(result, [call] * size)
                        continue
                    self.assertIsInstance(result, Mismatch)
                    named = [count for count in counts if f"sum of uint8[{count}]" in str(result)]
                    self.assertEqual(len(named), 2, result)
            self.assertEqual(len({str(rank.nameless.state) for rank in ranks}), 1)

        self._try(run)

    def test_a_rank_that_is_gone(self) -> None:
        """Its comparison is aborted for all; the call is made, and its round tells what it can."""

        def run(turns: Turns) -> None:
            draw = turns.random
            size, calls = draw.randrange(2, 5), draw.randrange(1, 12)
            plan = [draw.choice(_DECLARATIONS) for _ in range(calls)]
            rounds = Rounds(turns, size, on_one_node=False)
            ranks = [_Rank(client, plan, random.Random(draw.random())) for client in rounds.clients]
            for number, rank in enumerate(ranks[1:], 1):
                turns.start(f"rank {number}", rank.run)

            def go() -> None:
                for _ in range(draw.randrange(60)):
                    turns.pause()
                rounds.gone[0] = Aborted("rank 0 is gone")

            turns.start("rank 0", ranks[0].run, is_needed=False)
            turns.start("the loss", go)
            turns.run()
            for call in range(calls):
                for rank in ranks[1:]:
                    result = rank.results[call]
                    if not isinstance(result, Aborted):
                        self.assertEqual(result, [call] * size)
            # Every call was made, at each rank that is there.
            states = {str(rank.nameless.state) for rank in ranks[1:]}
            self.assertEqual(len(states), 1)
            [made] = {sum(rank.nameless.state.values()) for rank in ranks[1:]}
            self.assertEqual(made, calls)

        self._try(run)


if __name__ == "__main__":
    unittest.main()
