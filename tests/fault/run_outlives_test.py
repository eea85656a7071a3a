# SPDX-License-Identifier: Apache-2.0
"""Tests that `talweg run --restarts` starts an agent again, while its ranks outlive it."""

from __future__ import annotations

import os
import signal
import unittest

from outliving import Run

_PROGRAM = ["train_on.py", "--save"]


class RunOutlivesTest(unittest.TestCase):
    def _kill_agents(self, ranks: int, *options: str) -> None:
        run = Run(self, _PROGRAM, options)
        run.go_on(ranks)
        pids = set(run.said())
        killed = 0
        for count in (2, 3):
            killed = run.kill_agent(0, count, not_pid=killed)
            run.go_on(ranks)
        output = run.stop()
        self.assertIn("the agent of node 0 is started again, its ranks wait for it (2 of 3", output)
        said = run.said()
        self.assertEqual(set(said), pids)  # Each rank has kept its process.
        self.assertEqual(len({lines[-1] for lines in said.values()}), 1)

    def test_one_of_two_nodes(self) -> None:
        self._kill_agents(3, "--nodes=2", "--ranks-per-node=2,1", "--loss-policy=continue")

    def test_the_only_node(self) -> None:
        self._kill_agents(2, "--ranks-per-node=2")

    def test_where_all_nodes_are_needed_ranks_end(self) -> None:
        run = Run(self, _PROGRAM, ["--nodes=2"])
        run.go_on(2)
        pids = set(run.said())
        os.kill(run.agent(0), signal.SIGKILL)
        run.wait_for("no others", lambda said: len(said) == 4)
        run.go_on(2)
        self.assertIn("all nodes are started again", run.stop())
        said = run.said()
        ends = {said[pid][-1] for pid in said.keys() - pids}
        self.assertEqual(len(ends), 1, ends)


if __name__ == "__main__":
    unittest.main()
