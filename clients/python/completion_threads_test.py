# SPDX-License-Identifier: Apache-2.0
"""The threads that make calls of rounds: what they keep, and when they end."""

from __future__ import annotations

import threading
import unittest
import weakref
from typing import Any, cast

from talweg._client.completions import Completions

_TIMEOUT_S = 60.0


class _Held:
    """What a call holds, as a torch future is."""

    def __init__(self) -> None:
        self.freed = threading.Event()
        weakref.finalize(self, self.freed.set)
        self.called = threading.Event()

    def call(self) -> None:
        self.called.set()


def _threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "talweg-completions"]


class CompletionThreadsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.completions = Completions(cast(Any, None))  # No round is watched.
        self.addCleanup(self.completions.end, _TIMEOUT_S)

    def test_a_thread_that_waits_keeps_nothing(self) -> None:
        held = _Held()
        freed = held.freed
        self.completions.call(held.call)
        del held
        self.assertTrue(freed.wait(_TIMEOUT_S))
        self.assertEqual(len(_threads()), 1)

    def test_the_end_waits_for_all(self) -> None:
        """Also for one that has a call to make still."""
        go_on, begun = threading.Event(), threading.Event()

        def call() -> None:
            begun.set()
            go_on.wait(_TIMEOUT_S)

        self.completions.call(call)
        self.assertTrue(begun.wait(_TIMEOUT_S))
        self.completions.end()
        self.assertEqual(len(_threads()), 1)
        ender = threading.Thread(target=self.completions.end, args=(_TIMEOUT_S,))
        ender.start()
        go_on.set()
        ender.join(_TIMEOUT_S)
        self.assertEqual(_threads(), [])

    def test_a_call_that_ends_them_does_not_wait_for_itself(self) -> None:
        over = threading.Event()

        def call() -> None:
            self.completions.end(_TIMEOUT_S)
            over.set()

        self.completions.call(call)
        self.assertTrue(over.wait(_TIMEOUT_S / 2))


if __name__ == "__main__":
    unittest.main()
