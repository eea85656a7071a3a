# SPDX-License-Identifier: Apache-2.0
"""How data that is longer than its tensors goes through them, without ranks."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from talweg._collectives import kinds
from talweg._collectives.call_data import Parts, carry
from talweg._collectives.channels import Steps, Wait
from talweg._collectives.kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    SCATTER,
    Given,
    Kind,
    Lane,
    capacity_of,
)
from talweg.errors import Aborted, TalwegError

_PIECE = capacity_of(BROADCAST, 1 << 30, 2)


class _Channel:
    """Says what is pushed and waited for, in that order."""

    def __init__(self, overlaps: bool) -> None:
        self.overlaps = overlaps
        self.in_one = False
        self.group: Any = SimpleNamespace(size=2, place=1)
        self.client: Any = SimpleNamespace(connection=self)
        self.events: list[str] = []
        self.refuses = 0
        self._pushed = 0

    def holds_own(self) -> bool:
        return not self.overlaps

    def lane_tensor(self, lane: Lane) -> int:
        return lane.turn

    def push_places(self, tensor: int, *_: Any) -> int:
        self._pushed += 1
        if self._pushed == self.refuses:
            raise Aborted("refused")
        self.events.append(f"push {self._pushed} to {tensor}")
        return self._pushed

    def wait(self, wait: Wait) -> None:
        more = " and more is pushed" if wait.pushes_more else ""
        self.events.append(f"wait for {wait.round} of {wait.tensor}{more}")


def _carry(channel: Any, nbytes: int, turn: int = 0) -> Steps:
    given = Given(BROADCAST, 0, None, [], 0, None, lambda rows, counts: (None, 0))
    return carry(channel, given, 0, turn, Parts(0, []), Parts(0, [nbytes]), nbytes)


class CarryTest(unittest.TestCase):
    def test_the_first_long_call_sets_little_memory_aside(self) -> None:
        def all_parts(kind: Kind, nbytes: int) -> int:
            return capacity_of(kind, nbytes, 4) * kind.part_count(4)

        for kind in (BROADCAST, ALL_GATHER, SCATTER):
            self.assertEqual(all_parts(kind, 1 << 30), 8 << 20, kind)
        self.assertEqual(all_parts(ALL_REDUCE, 1 << 30), 16 << 20)
        for kind in (BROADCAST, ALL_REDUCE):
            self.assertEqual(all_parts(kind, 32 << 20), 32 << 20, kind)  # In one round.


class PiecesTest(unittest.TestCase):
    def setUp(self) -> None:
        # More than a piece takes several rounds.
        less = mock.patch.object(kinds, "_TENSOR_BYTES_MAX", _PIECE)
        less.start()
        self.addCleanup(less.stop)

    def test_over_a_network_a_piece_travels_while_another_is_taken(self) -> None:
        channel = _Channel(overlaps=True)
        for wait in _carry(channel, 3 * _PIECE + 1, turn=1):
            channel.wait(wait)
        self.assertEqual(
            channel.events,
            [
                "push 1 to 1",
                "push 2 to 0",
                "wait for 1 of 1 and more is pushed",
                "push 3 to 1",
                "wait for 2 of 0 and more is pushed",
                "push 4 to 0",
                "wait for 3 of 1",
                "wait for 4 of 0",
            ],
        )

    def test_on_one_node_one_tensor_is_enough(self) -> None:
        channel = _Channel(overlaps=False)
        for wait in _carry(channel, 2 * _PIECE):
            channel.wait(wait)
        self.assertEqual(
            channel.events,
            ["push 1 to 0", "wait for 1 of 0 and more is pushed", "push 2 to 0", "wait for 2 of 0"],
        )

    def _fail_first_wait(self, channel: _Channel) -> None:
        steps = _carry(channel, 3 * _PIECE)
        channel.wait(next(steps))
        channel.wait(steps.throw(Aborted("a member was lost")))
        with self.assertRaisesRegex(Aborted, "a member was lost"):
            steps.throw(TalwegError("the other one is over, too"))

    def test_after_a_failure_no_round_stays_open(self) -> None:
        channel = _Channel(overlaps=True)
        self._fail_first_wait(channel)
        self.assertEqual([event for event in channel.events if "push 3" in event], [])
        self.assertTrue(channel.events[-1].startswith("wait for 2 of 1"), channel.events)

    def test_after_a_push_that_fails_no_round_stays_open(self) -> None:
        channel = _Channel(overlaps=True)
        channel.refuses = 2
        with self.assertRaisesRegex(Aborted, "refused"):
            for wait in _carry(channel, 3 * _PIECE):
                channel.wait(wait)
        self.assertEqual(len(channel.events), 2)
        self.assertTrue(channel.events[1].startswith("wait for 1 of 0"), channel.events)


if __name__ == "__main__":
    unittest.main()
