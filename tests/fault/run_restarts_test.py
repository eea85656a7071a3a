# SPDX-License-Identifier: Apache-2.0
"""Tests that `talweg run` starts killed processes again, with real daemons."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import unittest
from pathlib import Path

from cluster import DEADLINE_S, TOOL
from talweg_run import TalwegRun


class _Run(TalwegRun):
    """A `talweg run` of until_told.py."""

    def __init__(self, test: unittest.TestCase, *options: str) -> None:
        super().__init__(test, ["until_told.py"], options)

    def counts(self, rank: int) -> list[tuple[int, int]]:
        """Returns for each round the rank's process, and how many ranks it has seen take part."""
        path = self.directory / str(rank)
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(int(pid), int(count)) for pid, count in whole]

    def await_count(self, rank: int, count: int, not_pid: int = 0, rounds: int = 20) -> int:
        """Returns the rank's PID when `count` ranks have taken part in `rounds` more rounds."""
        begin = len(self.counts(rank))
        end = time.monotonic() + DEADLINE_S
        while True:
            seen = [each for each in self.counts(rank)[begin:] if each[1] == count]
            seen = [each for each in seen if each[0] != not_pid]
            if len(seen) >= rounds:
                return seen[-1][0]
            if self.process.poll() is not None or time.monotonic() > end:
                self.fail(f"rank {rank} does not see {count}")
            time.sleep(0.01)


class RunRestartsTest(unittest.TestCase):
    def test_a_scheduler_that_is_killed_is_not_missed(self) -> None:
        for policy in ("fail_job", "continue"):
            with self.subTest(policy=policy):
                run = _Run(self, "--nodes=2", f"--loss-policy={policy}")
                pids = [run.await_count(rank, 2) for rank in range(2)]
                killed = 0
                for _ in range(2):
                    killed = run.daemon("talweg-scheduler", not_pid=killed)
                    os.kill(killed, signal.SIGKILL)
                    self.assertEqual([run.await_count(rank, 2) for rank in range(2)], pids)
                output = run.stop()
                self.assertEqual(output.count("it is started again, steps go on"), 2, output)
                for rank in range(2):
                    self.assertEqual({count for _, count in run.counts(rank)}, {2})

    def test_a_scheduler_that_is_back_decides(self) -> None:
        run = _Run(self, "--nodes=3", "--loss-policy=continue", "--restarts=1")
        pids = [run.await_count(rank, 3) for rank in range(3)]
        os.kill(run.daemon("talweg-scheduler"), signal.SIGKILL)
        os.kill(pids[2], signal.SIGKILL)
        # The scheduler publishes a view without the node, and then one with it.
        run.await_count(2, 3, not_pid=pids[2])
        self.assertEqual([run.await_count(rank, 3) for rank in range(2)], pids[:2])
        run.stop()
        self.assertIn(2, {count for _, count in run.counts(0)})

    def test_a_rank_that_is_killed_comes_back(self) -> None:
        shape = ["--nodes=2", "--ranks-per-node=1,2", "--loss-policy=continue"]
        run = _Run(self, *shape, "--restarts=3")
        pids = [run.await_count(rank, 3) for rank in range(3)]
        for killed in range(2):
            victim = run.await_count(1 + killed, 3)
            os.kill(victim, signal.SIGKILL)
            # The rank's node comes back as a whole, and the other node goes on.
            run.await_count(1 + killed, 3, not_pid=victim)
            self.assertEqual(run.await_count(0, 3), pids[0])
        output = run.stop()
        self.assertIn("node 1 is started again (1 of 3 times in 300 s): rank 1", output)
        self.assertIn("node 1 is started again (2 of 3 times in 300 s): rank 2", output)
        self.assertEqual({pid for pid, _ in run.counts(0)}, {pids[0]})
        # A round has all ranks of a node or none.
        self.assertLessEqual({count for _, count in run.counts(0)}, {1, 3})

    def test_an_agent_that_is_killed_comes_back(self) -> None:
        run = _Run(self, "--nodes=2", "--loss-policy=continue", "--restarts=1")
        pids = [run.await_count(rank, 2) for rank in range(2)]
        os.kill(run.daemon("talweg-agent", "--node_rank=0"), signal.SIGKILL)
        run.await_count(0, 2, not_pid=pids[0])
        self.assertEqual(run.await_count(1, 2), pids[1])
        self.assertIn("node 0 is started again", run.stop())

    def test_an_aggregator_that_is_killed_comes_back(self) -> None:
        run = _Run(self, "--nodes=2", "--aggregators=2", "--loss-policy=continue", "--restarts=1")
        pids = [run.await_count(rank, 2) for rank in range(2)]
        for name in ("--name=0", "--name=1"):
            # The second time only the aggregator that has come back is left.
            killed = run.daemon("talweg-aggregator", name)
            os.kill(killed, signal.SIGKILL)
            self.assertEqual([run.await_count(rank, 2) for rank in range(2)], pids)
            # All tensors may be at the other aggregator, so these rounds do not show that the kill
            # was noticed.
            run.daemon("talweg-aggregator", name, not_pid=killed)
            self._await_aggregators(run, 2)
        run.stop()
        self.assertEqual({count for _, count in run.counts(0)}, {2})

    def _await_aggregators(self, run: _Run, count: int) -> None:
        """Returns when the scheduler, at the launcher's address for it, has `count` of them."""
        pid = run.daemon("talweg-scheduler")
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        address = next(each for each in line if each.startswith("--listen=")).partition("=")[2]
        end = time.monotonic() + DEADLINE_S
        while True:
            asked = [str(TOOL), "status", f"--scheduler={address}", "--brief", "--json"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.stdout.count("STATE_LIVE") >= count:
                return
            self.assertLess(time.monotonic(), end, done)
            time.sleep(0.01)

    def test_where_all_are_needed_all_begin_again(self) -> None:
        run = _Run(self, "--nodes=2", "--restarts=1")
        pids = [run.await_count(rank, 2) for rank in range(2)]
        os.kill(pids[1], signal.SIGKILL)
        for rank in range(2):
            run.await_count(rank, 2, not_pid=pids[rank])
        self.assertIn("all nodes are started again (1 of 1", run.stop())


if __name__ == "__main__":
    unittest.main()
