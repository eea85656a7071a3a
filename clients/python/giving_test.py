# SPDX-License-Identifier: Apache-2.0
"""When a survivor sets aside what it gives a standby by, without a job."""

from __future__ import annotations

import ctypes
import threading
import unittest
from collections.abc import Callable
from typing import Any, cast

from talweg._elastic.catch_up_lines import ASKS
from talweg._elastic.giving import Giving
from talweg._elastic.views import Member, View


class _Connection:
    """Where a standby asks when it is told to. It keeps the groups of what was declared."""

    def __init__(self) -> None:
        self.declared: dict[str, list[int]] = {}
        self.asks = threading.Event()
        self.has_line = threading.Event()

    def declare_collective(self, *arguments: Any, **named: Any) -> int:
        name, ranks = arguments[0], arguments[5]
        self.declared[name] = ranks
        if name.endswith(".1"):
            self.has_line.set()
        return len(self.declared) - 1

    def push_parts(self, *_: Any) -> int:
        return 1

    def wait_parts(self, tensor: int, round_: int, address: int, *rest: Any) -> bool:
        if tensor == 0:
            if not self.asks.wait(0.001):
                return False
            ctypes.memset(address, ASKS, 1)
        return True


class _Client:
    def __init__(self) -> None:
        self.connection = _Connection()

    def call_before_closing(self, _: Callable[[], None]) -> None:
        pass


def _view(epoch: int, others: int) -> View:
    """Node 0 with one rank, nodes with as many ranks in all as `others`, and node 9 as a standby."""
    between = [Member(node, 1, range(node, node + 1)) for node in range(1, 1 + others)]
    standby = Member(9, 7, range(1 + others, 3 + others), standby=True)
    return View(epoch, (Member(0, 1, range(1)), *between, standby), 0, 1 + others)


class GivingTest(unittest.TestCase):
    def test_a_line_is_declared_once_it_is_asked_for_by_the_numbers_that_ranks_have_then(
        self,
    ) -> None:
        client = _Client()
        giving, connection = Giving(cast(Any, client)), client.connection
        for epoch, others in ((1, 1), (2, 3)):
            with giving.numbers:
                giving.follow(_view(epoch, others), (0, 0), None)
        self.assertEqual(list(connection.declared.values()), [[0, 2, 3]])  # That it asks on.
        connection.asks.set()
        self.assertTrue(connection.has_line.wait(60))
        self.assertEqual(list(connection.declared.values())[1:], [[0, 4, 5]] * 2)
        giving._close()

    def test_nothing_is_declared_for_a_standby_that_is_gone(self) -> None:
        client = _Client()
        giving, connection = Giving(cast(Any, client)), client.connection
        with giving.numbers:
            giving.follow(_view(1, 1), (0, 0), None)
            giving.follow(View(2, (Member(0, 1, range(1)),), 0, 1), (0, 0), None)
        connection.asks.set()
        giving._close()
        self.assertEqual(len(connection.declared), 1)


if __name__ == "__main__":
    unittest.main()
