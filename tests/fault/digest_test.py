# SPDX-License-Identifier: Apache-2.0
"""Tests that all ranks get an error that names the ranks whose parameters differ."""

from __future__ import annotations

import unittest

from cluster import Cluster, Daemon, Rank

_DIFFERS = r"error Mismatch: ranks .1. hold other parameters than the others"


class DigestTest(unittest.TestCase):
    def _check(self, ranks: list[Rank], last: int) -> None:
        for rank in ranks:
            self.assertRegex(rank.wait_for("error"), _DIFFERS)
            steps = [line for line in rank.seen if line.startswith("step")]
            self.assertEqual(steps[-1], f"step {last}")
            self.assertEqual(rank.process.wait(60), 3)

    def _agents(self, cluster: Cluster, policy: str) -> list[Daemon]:
        scheduler = cluster.scheduler(["--in_memory"]).addresses["listen"]
        cluster.aggregator(scheduler, "a0")
        self.options = [f"--scheduler={scheduler}", f"--loss_policy={policy}", "--max_members=3"]
        self.options.append(f"--min_members={3 if policy == 'fail_job' else 1}")
        return [self._agent(cluster, node) for node in range(3)]

    def _agent(self, cluster: Cluster, node: int) -> Daemon:
        return cluster.agent(node, [*self.options, f"--node_rank={node}"])

    def test_every_so_many_steps(self) -> None:
        for policy in ("continue", "fail_job"):
            with self.subTest(policy=policy), Cluster() as cluster:
                agents = self._agents(cluster, policy)
                # Weights differ in the 8th step, and the comparison is at the end of the 10th.
                ranks = [cluster.rank(agent, "diverge.py", ["1", "7", "5"]) for agent in agents]
                self._check(ranks, last=9)

    def test_on_one_node(self) -> None:
        with Cluster() as cluster:
            agent = cluster.agent(0, ["--standalone", "--rank_count=3"])
            ranks = [cluster.rank(agent, "diverge.py", ["1", "7", "5"]) for _ in range(3)]
            self._check(ranks, last=9)

    def test_the_first_step(self) -> None:
        with Cluster() as cluster:
            agents = self._agents(cluster, "continue")
            ranks = [cluster.rank(agent, "diverge.py", ["1", "0", "0"]) for agent in agents]
            for rank in ranks:
                self.assertRegex(rank.wait_for("error"), _DIFFERS)
                self.assertNotIn("step 1", rank.seen)

    def test_a_joiners_first_step(self) -> None:
        with Cluster() as cluster:
            agents = self._agents(cluster, "continue")
            program = ("diverge.py", ["1", "joined", "0"])
            ranks = [cluster.rank(agent, *program) for agent in agents]
            for rank in ranks:
                rank.wait_for("step 5")
            agents[1].kill()
            ranks[1].process.kill()
            joiner = cluster.rank(self._agent(cluster, 1), *program)
            for rank in (ranks[0], joiner, ranks[2]):
                self.assertRegex(rank.wait_for("error"), _DIFFERS)
            self.assertEqual([line for line in joiner.seen if line.startswith("step")], [])

    def test_nothing_is_compared_later_if_nobody_asks(self) -> None:
        with Cluster() as cluster:
            agents = self._agents(cluster, "continue")
            ranks = [cluster.rank(agent, "diverge.py", ["1", "7", "0"]) for agent in agents]
            for rank in ranks:
                rank.wait_for("step 30")


if __name__ == "__main__":
    unittest.main()
