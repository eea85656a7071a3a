# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the documents. A node's agent and rank are killed, and started again."""

from __future__ import annotations

import time
import unittest

from catching_up import Job, require_no_open_round
from cluster import DEADLINE_S, RUNFILES, Cluster

_ELASTIC = str(RUNFILES / "docs" / "elastic.md")
_README = str(RUNFILES / "README.md")


def _kill(job: Job, node: int) -> None:
    job.agents[node].kill()
    job.ranks[node].process.kill()
    job.ranks[node].process.wait(DEADLINE_S)


class ElasticPageTest(unittest.TestCase):
    def _comes_back(self, heading: str, kind: str, victim: int) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [_ELASTIC, heading, kind], program="page.py")
            other = job.ranks[1 - victim]
            job.ranks[victim].goes_on()
            _kill(job, victim)
            other.wait_for("of 1 ranks")
            joiner = job.add(victim)
            joiner.wait_for("begins")
            for rank in (other, joiner):
                rank.wait_for("of 2 ranks")
                rank.goes_on()
            require_no_open_round(self, job.agents)
            job.end(self, [1 - victim, 2])

    def test_with_torch(self) -> None:
        self._comes_back("A program", "torch", victim=1)

    def test_without_a_framework(self) -> None:
        for victim in (1, 0):
            with self.subTest(victim=victim):
                self._comes_back("Without a framework", "numpy", victim)


class ReadmeTest(unittest.TestCase):
    def test_a_program_that_ends_no_steps_goes_on_alone(self) -> None:
        """The restarted rank waits in init(), and the status says for what."""
        with Cluster(with_torch=True) as cluster:
            job = Job(
                cluster, [_README, "Use it", "readme"], program="page.py", begin_together=True
            )
            for rank in job.ranks:
                rank.goes_on()
            _kill(job, 1)
            job.ranks[0].goes_on()
            joiner = job.add(1)
            end, text = time.monotonic() + DEADLINE_S, ""
            while "talweg.end_step()" not in text:
                self.assertLess(time.monotonic(), end, text)
                text = job.text()
            job.ranks[0].goes_on()
            self.assertRegex(joiner.wait_for("error "), "has not admitted this rank within")
            job.stop.touch()
            job.ranks[0].wait_for("weights ")
            self.assertEqual(job.ranks[0].process.wait(DEADLINE_S), 0)


if __name__ == "__main__":
    unittest.main()
