# SPDX-License-Identifier: Apache-2.0
"""Calls that are made when a time has come: in which order, and what the thread keeps."""

from __future__ import annotations

import queue
import threading
import time
import unittest
import weakref
from collections.abc import Callable

from talweg._client.deadlines import Deadlines

_TIMEOUT_S = 60.0


class _Held:
    def call(self) -> None:
        """It has a deadline."""


def _threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "talweg-deadlines"]


class DeadlinesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.made: queue.Queue[Callable[[], None]] = queue.Queue()
        self.deadlines = Deadlines(self.made.put)
        self.addCleanup(self.deadlines.end)

    def _call_in(self, seconds: float, call: Callable[[], None]) -> int:
        return self.deadlines.call_at(time.monotonic() + seconds, call)

    def test_the_first_time_comes_first(self) -> None:
        """Also where it is told last, and the thread sleeps until another one."""
        first, second, never = _Held().call, _Held().call, _Held().call
        forgotten = self._call_in(0.0002, never)
        self.deadlines.forget(forgotten)
        self._call_in(2 * _TIMEOUT_S, never)
        self._call_in(0.02, second)
        self._call_in(0.0, first)
        made = [self.made.get(timeout=_TIMEOUT_S) for _ in range(2)]
        self.assertEqual(made, [first, second])
        self.assertTrue(self.made.empty())

    def test_one_that_is_forgotten_is_freed(self) -> None:
        held = _Held()
        freed = weakref.ref(held)
        self.deadlines.forget(self._call_in(_TIMEOUT_S, held.call))
        self.deadlines.forget(7)  # There is none.
        del held
        self.assertIsNone(freed())

    def test_it_takes_one_thread_which_ends(self) -> None:
        self.assertEqual(_threads(), [])
        for seconds in (1e8, float("inf"), _TIMEOUT_S):
            self._call_in(seconds, _Held().call)
        self.assertEqual(len(_threads()), 1)
        self.deadlines.end()
        self.assertEqual(_threads(), [])
        self._call_in(0.0, _Held().call)
        self.assertEqual(_threads(), [])
        self.assertTrue(self.made.empty())


if __name__ == "__main__":
    unittest.main()
