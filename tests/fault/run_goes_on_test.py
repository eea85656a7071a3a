# SPDX-License-Identifier: Apache-2.0
"""Tests `talweg run --loss-policy=continue` with real daemons: who goes on, and how it ends."""

from __future__ import annotations

import subprocess
import sys
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, PROGRAMS, TOOL

_ROUNDS = 30


def _run(*options: str, victim: int) -> subprocess.CompletedProcess[str]:
    """Runs three nodes with one rank each. One rank dies before round 5."""
    return _run_program("count_ranks.py", str(_ROUNDS), str(victim), "5", options=options)


def _run_program(
    program: str, *arguments: str, options: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Runs a program of tests/fault/programs on three nodes with one rank each."""
    return subprocess.run(
        [
            str(TOOL),
            "run",
            "--nodes=3",
            "--aggregators=2",
            *options,
            "--",
            *[sys.executable, "-P", str(PROGRAMS / program), *arguments],
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


class RunGoesOnTest(unittest.TestCase):
    def test_without_a_node(self) -> None:
        for victim in (0, 2):
            with self.subTest(victim=victim):
                done = _run("--loss-policy=continue", victim=victim)
                self.assertEqual(done.returncode, 0, done.stderr)
                for rank in {0, 1, 2} - {victim}:
                    counts = [
                        line.partition(": ")[2]
                        for line in done.stdout.splitlines()
                        if line.startswith(f"[{rank}] round")
                    ]
                    # All three begin. The dead rank is missing in rounds that it had not pushed.
                    self.assertEqual(counts, ["3 to 3"] * 4 + ["2 to 2"] * (_ROUNDS - 4))
                self.assertIn(f"node {victim} is lost, the others go on", done.stderr)
                self.assertIn(f"has ended well without node {victim}: rank {victim}", done.stderr)
                self.assertIn("killed by signal 9", done.stderr)

    def test_a_loss_is_told_once(self) -> None:
        """A program without a State hears of a loss in its first step, as in any other."""
        for step in (0, 2):
            with self.subTest(step=step):
                options = ["--loss-policy=continue"]
                done = _run_program("lost_early.py", str(step), options=options)
                self.assertEqual(done.returncode, 0, done.stderr)
                change = "3 to 2 without [2]"
                for rank in (0, 1):
                    self.assertIn(f"[{rank}] returned {change}, members [0, 1]\n", done.stdout)
                    self.assertIn(f"[{rank}] heard ['{change}']\n", done.stdout)

    def test_with_too_few(self) -> None:
        done = _run("--loss-policy=continue", "--min-nodes=3", victim=1)
        self.assertEqual(done.returncode, 128 + 9, done.stderr)
        self.assertIn("no node is left", done.stderr)

    def test_a_loss_ends_it_otherwise(self) -> None:
        done = _run(victim=1)
        self.assertEqual(done.returncode, 128 + 9, done.stderr)
        self.assertIn("all other ranks were ended", done.stderr)


if __name__ == "__main__":
    unittest.main()
