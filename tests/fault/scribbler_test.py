# SPDX-License-Identifier: Apache-2.0
"""Tests a rank that writes random bytes into all memory that it maps, while others work.

Its own node may get errors and lose its job. No daemon and no other rank crashes, and another job
on the same host, with the same aggregator, goes on with right sums.
"""

from __future__ import annotations

import os
import random
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, Cluster, Daemon, Job, Rank

_LIVES = 40 if os.environ.get("TALWEG_TEST_FULL") else 6


class ScribblerTest(unittest.TestCase):
    def setUp(self) -> None:
        # Each run has new seeds. TALWEG_SCRIBBLER_SEED repeats those of an earlier run.
        first = int(os.environ.get("TALWEG_SCRIBBLER_SEED") or random.randrange(10**9))
        self.seeds = range(first, first + _LIVES)
        print(f"TALWEG_SCRIBBLER_SEED={first}", flush=True)

    def check_life(
        self, cluster: Cluster, seed: int, agents: Sequence[Daemon], neighbours: Sequence[Rank]
    ) -> None:
        """Runs one scribbler at the first agent."""
        scribbler = cluster.rank(agents[0], "scribble.py", [str(seed)])
        scribbler.wait_for("mapped ")
        scribbler.process.wait(DEADLINE_S)  # It may crash itself.
        for agent in agents:
            agent.process.terminate()
        for agent in agents:
            status = agent.process.wait(DEADLINE_S)
            self.assertGreaterEqual(status, 0, f"seed {seed}: {agent.name} crashed")
        for neighbour in neighbours:
            status = neighbour.process.wait(DEADLINE_S)
            self.assertGreaterEqual(status, 0, f"seed {seed}: {neighbour.seen[-3:]}")

    def test_in_a_job_of_several_nodes(self) -> None:
        with Cluster() as cluster:
            other = Job(cluster, nodes=(2, 1), name="other")
            scheduler = other.scheduler.addresses["listen"]
            for seed in self.seeds:
                with self.subTest(seed=seed):
                    agents = []
                    for node, ranks in enumerate((2, 1)):
                        options = [f"--scheduler={scheduler}", f"--job=scribbled{seed}"]
                        options += [f"--node_rank={node}", f"--rank_count={ranks}"]
                        options += ["--min_members=2", "--max_members=2"]
                        agents.append(cluster.agent(node, options, name=f"agent{seed}.{node}"))
                    neighbours = [cluster.rank(agent, "push_on.py") for agent in agents]
                    self.check_life(cluster, seed, agents, neighbours)
                    for daemon in (other.scheduler, *other.aggregators, *other.agents):
                        self.assertIsNone(daemon.process.poll(), daemon.name)
                    for rank in other.all_ranks():
                        rank.goes_on()

    def test_beside_ranks_that_sum(self) -> None:
        """Runs two jobs of one node each, without a scheduler."""
        with Cluster() as cluster:
            options = ["--standalone", "--rank_count=2"]
            agent = cluster.agent(0, [*options, "--job=other"], name="other")
            others = [cluster.rank(agent, "steady.py") for _ in range(2)]
            for seed in self.seeds:
                with self.subTest(seed=seed):
                    scribbled = cluster.agent(0, options, name=f"agent{seed}")
                    neighbour = cluster.rank(scribbled, "push_on.py")
                    self.check_life(cluster, seed, [scribbled], [neighbour])
                    self.assertIsNone(agent.process.poll())
                    for rank in others:
                        rank.goes_on()


if __name__ == "__main__":
    unittest.main()
