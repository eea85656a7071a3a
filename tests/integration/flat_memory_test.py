# SPDX-License-Identifier: Apache-2.0
"""Tests that calls of changing shapes keep the memory of ranks and daemons flat.

With --full each job makes a million calls.
"""

from __future__ import annotations

import os
import unittest

import job
from torch_forks import TorchForks, torch_forks

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


def _run(how: str, calls: int, nodes: int, ranks: int, forks: TorchForks | None = None) -> None:
    aggregators = 1 if nodes > 1 else None
    arguments = [how, str(1_000_000 if _FULL else calls)]
    line = job.command("flat_memory.py", arguments, nodes, ranks, aggregators, forks=forks)
    output = job.run(line, timeout_s=7000.0 if _FULL else job.TIMEOUT_S)
    # Each rank has looked at itself, the agents, and, with several nodes, the other two daemons.
    looks = [text.partition("flat: ")[2] for text in output.splitlines() if "flat: " in text]
    assert len(looks) == nodes * ranks, output
    for look in looks:
        for name, count in (
            *(("rank ", 1), ("talweg-schedule", aggregators or 0)),
            *(("talweg-agent", nodes), ("talweg-aggregat", aggregators or 0)),
        ):
            assert look.count(name) == count, look


class FlatMemoryTest(unittest.TestCase):
    def test_one_node(self) -> None:
        _run("numpy", 2_000, nodes=1, ranks=2)

    def test_two_nodes(self) -> None:
        _run("numpy", 7_000, nodes=2, ranks=1)

    def test_torch_distributed(self) -> None:
        _run("c10d", 4_000, nodes=2, ranks=1, forks=torch_forks())


if __name__ == "__main__":
    unittest.main()
