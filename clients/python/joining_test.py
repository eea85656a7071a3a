# SPDX-License-Identifier: Apache-2.0
"""Who has joined last, and the names that ranks tell each other, without ranks."""

from __future__ import annotations

import pickle
import unittest
from dataclasses import replace

import numpy as np
from talweg import _joining
from talweg._client.handles import Nameless
from talweg._declaration import Declaration, DType, Op
from talweg._joining_names import Name

_SUM = Declaration(DType.F32, 4, Op.SUM, 0)


_IN_A_SET = Name("s", (0, 1), _SUM)


def _names(*names: str) -> list[Name]:
    return [Name(name.replace("_", "."), (), _SUM) for name in names]


def _account(in_a_set: int = 0, **before: int) -> tuple[list[Name], np.ndarray]:
    """What a rank has, and tells: so many rounds of each name before it joined."""
    names, rounds = [*_names(*before), _IN_A_SET], [*before.values(), in_a_set]
    rows = [(name.digest, each, each + 1) for name, each in zip(names, rounds)]
    return names, np.array(rows, _joining._ROW)


def _last_of(accounts: dict[int, tuple[list[Name], np.ndarray]]) -> int:
    """As each of the ranks finds it."""
    rows = {rank: told for rank, (_, told) in accounts.items()}
    [last] = {_joining._last_of(rows, names) for names, _ in accounts.values()}
    return last


class JoiningTest(unittest.TestCase):
    def test_the_last_has_made_most_calls(self) -> None:
        accounts = [_account(x=3, y=1), _account(x=3, y=2), _account(x=2, y=1)]
        self.assertEqual(_last_of(dict(enumerate(accounts))), 1)

    def test_the_largest_of_those_that_join_together_is_the_last(self) -> None:
        accounts = {0: _account(x=3), 2: _account(x=3), 3: _account(x=2)}  # Rank 1 is gone.
        self.assertEqual(_last_of(accounts), 2)

    def test_what_not_all_ranks_know_says_nothing(self) -> None:
        """A name is freed at a rank that goes on, and stays with one that has joined."""
        accounts = [_account(x=1, freed=7), _account(x=2, new=1)]
        self.assertEqual(_last_of(dict(enumerate(accounts))), 1)

    def test_its_own_rounds_and_those_of_sets_say_nothing(self) -> None:
        accounts = [
            _account(x=2, talweg_join_names=1, in_a_set=1),
            _account(x=1, talweg_join_names=9, in_a_set=5),
        ]
        self.assertEqual(_last_of(dict(enumerate(accounts))), 0)

    def test_names_travel(self) -> None:
        for name in (Name("x", (), _SUM), Name("c", (1, 4), None, "t", True)):
            self.assertEqual(pickle.loads(pickle.dumps(name)), name)
        self.assertNotEqual(Name("x", (), _SUM).key, Name("x", ()).key)
        self.assertNotEqual(Name("x", (), _SUM).digest, Name("x", ()).digest)

    def test_turns_are_taken_over(self) -> None:
        early, late = Nameless(), Nameless()
        for _ in range(20):
            late.take_turn("push_pull", _SUM)
        late.take_turn("broadcast", _SUM)
        early.state = pickle.loads(pickle.dumps(late.state))
        for kind in ("push_pull", "broadcast", "push_pull"):
            self.assertEqual(early.take_turn(kind, _SUM), late.take_turn(kind, _SUM))

    def test_turns_are_those_of_what_is_called(self) -> None:
        """Whatever was called before: a view begins with no calls, and its tensors are there."""
        one, other = Nameless(), Nameless()
        longer = Declaration(DType.F32, 5, Op.SUM, 0)
        for _ in range(3):
            other.take_turn("push_pull", longer)
        names = [one.take_turn("push_pull", _SUM) for _ in range(17)]
        self.assertEqual(names, [other.take_turn("push_pull", _SUM) for _ in range(17)])
        self.assertEqual(len(set(names)), 16)
        self.assertEqual(one.next_name("push_pull", _SUM), names[1])
        alike = [_SUM, longer, replace(_SUM, shape=(4,)), replace(_SUM, shape=(2, 2))]
        alike += [replace(_SUM, op=Op.BROADCAST, root_rank=root) for root in (0, 1)]
        self.assertEqual(len({one.next_name("push_pull", each) for each in alike}), len(alike))


if __name__ == "__main__":
    unittest.main()
