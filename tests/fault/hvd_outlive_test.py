# SPDX-License-Identifier: Apache-2.0
"""Tests a program of Horovod's elastic mode. The agents of two nodes are killed in turn."""

from __future__ import annotations

import os
import signal
import unittest

from outliving import Run
from torch_forks import torch_forks


class HvdOutliveTest(unittest.TestCase):
    def test_agents_come_back(self) -> None:
        run = Run(
            self,
            ["hvd_elastic_torch.py"],
            ["--nodes=2", "--loss-policy=continue"],
            forks=torch_forks(),
        )
        run.go_on(2)
        pids = set(run.said())
        killed = 0
        for node, count, in_backward in ((1, 2, True), (1, 3, True), (0, 2, False)):
            not_pid = killed if count == 3 else 0
            killed = run.kill_agent(node, count, not_pid, in_backward)
            run.go_on(2)
        run.stop()
        said = run.said()
        self.assertEqual(set(said), pids)
        self.assertEqual(len({lines[-1] for lines in said.values()}), 1)
        for lines in said.values():
            self.assertTrue(lines[-1].startswith("weights "), lines[-1])
            self.assertNotIn("stale", lines)
            self.assertIn("reset 1", lines)  # The rank has seen the other one go,
            self.assertIn("reset 2", lines)  # and come back.

    def test_an_aggregator_is_lost(self) -> None:
        """The job gets another epoch with the same ranks, which are not interrupted."""
        options = ["--nodes=2", "--aggregators=2", "--loss-policy=continue"]
        run = Run(self, ["hvd_elastic_torch.py"], options, forks=torch_forks())
        run.go_on(2)
        os.kill(run.daemon("talweg-aggregator"), signal.SIGKILL)
        run.wait_for(
            "no other epoch",
            lambda said: all(any(line.startswith("epoch") for line in said[pid]) for pid in said),
        )
        run.go_on(2)
        run.stop()
        for lines in run.said().values():
            told = [line for line in lines if line.startswith(("begins", "reset"))]
            self.assertEqual(told, ["begins 0"])
            self.assertTrue(lines[-1].startswith("weights "), lines[-1])

    def test_the_only_agent_comes_back(self) -> None:
        """The only agent comes back. Its ranks have summed gradients in memory that they shared."""
        run = Run(self, ["hvd_elastic_torch.py"], ["--ranks-per-node=2"], forks=torch_forks())
        run.go_on(2)
        pids = set(run.said())
        killed = 0
        for count in (2, 3, 4):
            killed = run.kill_agent(0, count, killed, in_backward=count == 3)
            run.go_on(2)
        run.stop()
        said = run.said()
        self.assertEqual(set(said), pids)
        self.assertEqual(len({lines[-1] for lines in said.values()}), 1)
        for lines in said.values():
            self.assertTrue(lines[-1].startswith("weights "), lines[-1])
            self.assertNotIn("stale", lines)
            self.assertNotIn("changed", lines)


if __name__ == "__main__":
    unittest.main()
