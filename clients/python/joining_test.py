# SPDX-License-Identifier: Apache-2.0
"""Who has joined last, and the names that ranks tell each other, without ranks."""

from __future__ import annotations

import pickle
import unittest
from types import SimpleNamespace
from typing import cast

from talweg import _joining
from talweg._client.handles import Handle, Nameless
from talweg._declaration import Declaration, DType, Op
from talweg.errors import Mismatch

_SUM = Declaration(DType.F32, 4, Op.SUM, 0)


def _account(**before: int) -> _joining._Account:
    names = {name: _joining._Name(name.replace("_", "."), (), _SUM) for name in before}
    streams = {names[each].key: (names[each], before[each], before[each] + 1) for each in before}
    return _joining._Account(streams, None)


def _next(nameless: Nameless, kind: str, declaration: Declaration) -> str:
    return nameless.name_of(nameless.count(kind), kind, declaration)


class JoiningTest(unittest.TestCase):
    def test_the_last_has_made_most_calls(self) -> None:
        accounts = [_account(x=3, y=1), _account(x=3, y=2), _account(x=2, y=1)]
        self.assertEqual(_joining._last_of(dict(enumerate(accounts))), 1)

    def test_of_those_that_join_together_it_is_the_largest(self) -> None:
        accounts = {0: _account(x=3), 2: _account(x=3), 3: _account(x=2)}  # Rank 1 is gone.
        self.assertEqual(_joining._last_of(accounts), 2)

    def test_what_not_all_ranks_know_says_nothing(self) -> None:
        """A name is freed at a rank that goes on, and stays with one that has joined."""
        accounts = [_account(x=1, freed=7), _account(x=2, new=1)]
        self.assertEqual(_joining._last_of(dict(enumerate(accounts))), 1)

    def test_its_own_rounds_and_those_of_sets_say_nothing(self) -> None:
        accounts = [_account(x=2, talweg_join_names=1), _account(x=1, talweg_join_names=9)]
        name = _joining._Name("s", (0, 1), _SUM)
        accounts[0].streams[name.key] = name, 1, 2
        accounts[1].streams[name.key] = name, 5, 6
        self.assertEqual(_joining._last_of(dict(enumerate(accounts))), 0)

    def test_names_travel(self) -> None:
        for name in (_joining._Name("x", (), _SUM), _joining._Name("c", (1, 4), None, "t", True)):
            self.assertEqual(pickle.loads(pickle.dumps(name)), name)
        self.assertNotEqual(_joining._Name("x", (), _SUM).key, _joining._Name("x", ()).key)

    def test_turns_are_taken_over(self) -> None:
        early, late = Nameless(), Nameless()
        for _ in range(20):
            _next(late, "push_pull", _SUM)
        _next(late, "broadcast", _SUM)
        early.state = pickle.loads(pickle.dumps(late.state))
        for kind in ("push_pull", "broadcast", "push_pull"):
            self.assertEqual(_next(early, kind, _SUM), _next(late, kind, _SUM))

    def test_turns_after_a_call_on_which_ranks_disagreed(self) -> None:
        """Also those of the declarations that it had at one rank only."""
        one, other = Nameless(), Nameless()
        longer = Declaration(DType.F32, 5, Op.SUM, 0)
        for called, declaration in ((one, _SUM), (other, longer)):
            name = _next(called, "push_pull", declaration)
            self.assertEqual(name, "push_pull.0")
            called.open[name] = cast(Handle, SimpleNamespace(taken=False, failure=None))
        for call in range(60):
            declaration = (_SUM, longer)[call % 3 == 0]
            if call == 5:  # It comes out late.
                for called in (one, other):
                    called.open["push_pull.0"].failure = Mismatch("f32[4], f32[5]")
            name = _next(one, "push_pull", declaration)
            self.assertEqual(name, _next(other, "push_pull", declaration))
            self.assertNotEqual(name, "push_pull.0")

    def test_what_has_to_be_known_before_turns_go_round(self) -> None:
        nameless = Nameless()
        handle = cast(Handle, SimpleNamespace(name="push_pull.0", taken=False, failure=None))
        for call in range(16):
            self.assertEqual(nameless.in_doubt("push_pull", _SUM), [])
            self.assertEqual(_next(nameless, "push_pull", _SUM), f"push_pull.{call}")
            nameless.open.setdefault("push_pull.0", handle)
        self.assertEqual(nameless.in_doubt("push_pull", _SUM), [handle])
        nameless.forget(handle)
        self.assertEqual(nameless.in_doubt("push_pull", _SUM), [])


if __name__ == "__main__":
    unittest.main()
