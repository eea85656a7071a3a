# SPDX-License-Identifier: Apache-2.0
"""Kills every process of a running job, one after the other, and checks who is told what."""

from __future__ import annotations

import time
import unittest
from pathlib import Path
from random import Random

from cluster import DEADLINE_S, Cluster, Job, Rank


class KillTest(unittest.TestCase):
    def _error(self, rank: Rank, kind: str, *texts: str) -> None:
        line = rank.wait_for("error ")
        self.assertIn(f"error {kind}:", line)
        for text in texts:
            self.assertIn(text, line)
        self.assertEqual(rank.process.wait(DEADLINE_S), 3)

    def test_a_rank(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(2, 1))
            victim = job.ranks[0][1]
            victim.process.kill()
            # On both nodes the error has the PID of the killed rank, whichever its local rank is.
            for other in (job.ranks[0][0], job.ranks[1][0]):
                self._error(other, "JobFailed", "node 0", f"pid {victim.process.pid}")
            # The agents end with their job. Scheduler and aggregators go on.
            for agent in job.agents:
                self.assertNotEqual(agent.process.wait(DEADLINE_S), 0)
            for daemon in (job.scheduler, *job.aggregators):
                self.assertIsNone(daemon.process.poll())

    def test_a_rank_while_there_is_no_scheduler(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(2, 1))
            job.scheduler.kill()
            victim = job.ranks[0][0]
            victim.process.kill()
            self._error(job.ranks[0][1], "JobFailed", f"pid {victim.process.pid}")

    def test_a_rank_of_those_that_sum_in_place(self) -> None:
        """The kill comes at any moment of a round, mostly while ranks sum and wait for a piece."""
        random = Random(7)
        with Cluster() as cluster:
            for life in range(5):
                agent = cluster.agent(life, ["--standalone", "--rank_count=3"])
                ranks = [cluster.rank(agent, "in_place.py") for _ in range(3)]
                for rank in ranks:
                    rank.wait_for("step 3")
                victim, *others = random.sample(ranks, 3)
                spin_until = time.monotonic() + random.uniform(0, 0.05)
                while time.monotonic() < spin_until:
                    pass
                # The others wait for a stopped rank, and nothing of the round is lost.
                cluster.stop(victim.process)
                for rank in others:
                    self.assertIsNone(rank.process.poll())
                cluster.resume(victim.process)
                for rank in ranks:
                    rank.goes_on()
                victim.process.kill()
                for rank in others:
                    self._error(rank, "JobFailed", f"pid {victim.process.pid}")

    def test_an_agent(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(1, 1))
            job.agents[1].kill()
            self._error(job.ranks[1][0], "AgentLost")
            self._error(job.ranks[0][0], "JobFailed", "node 1")

    def test_an_agent_that_is_stopped(self) -> None:
        """The agent's socket stays open, and its ranks hear nothing from others."""
        with Cluster() as cluster:
            job = Job(cluster, nodes=(1, 1), agent_options=["--silence_ms=6s"])
            alone = cluster.agent(2, ["--standalone", "--rank_count=2", "--silence_ms=6s"])
            ranks_alone = [cluster.rank(alone, "steady.py") for _ in range(2)]
            for rank in ranks_alone:
                rank.wait_for("step 3")
            for agent in (job.agents[1], alone):
                cluster.stop(agent.process)
            for rank in (job.ranks[1][0], *ranks_alone):
                self._error(rank, "AgentLost", "is stopped, or hangs", "6.0 s")

    def test_an_aggregator(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(1, 1), aggregators=2)
            job.aggregators[1].kill()
            for rank in job.all_ranks():
                self._error(rank, "JobFailed", "aggregator", "a1")

    def test_an_agent_of_a_job_beside_another(self) -> None:
        """Both jobs use the same tensor names, nodes and aggregators."""
        with Cluster() as cluster:
            one = Job(cluster, nodes=(1, 1), aggregators=2, name="one")
            other = Job(cluster, nodes=(1, 2), beside=one, name="other")
            for rank in [*one.all_ranks(), *other.all_ranks()]:
                rank.goes_on()
            one.agents[1].kill()
            self._error(one.ranks[0][0], "JobFailed", "'one'", "node 1")
            for rank in other.all_ranks():
                rank.goes_on()

    def test_the_scheduler_is_not_missed_by_steps(self) -> None:
        with Cluster() as cluster:
            store = Path(cluster.directory) / "store.sqlite"
            job = Job(cluster, nodes=(1, 1), store=store)
            job.scheduler.kill()
            for rank in job.all_ranks():
                rank.goes_on()
            # The scheduler goes on from its store, at its old address, and still decides.
            address = job.scheduler.addresses["listen"]
            options = [f"--listen={address}", *job.store_options]
            cluster.start("scheduler", "scheduler.again", options)
            for rank in job.all_ranks():
                rank.goes_on()
            job.agents[0].kill()
            self._error(job.ranks[1][0], "JobFailed", "node 0")

    def test_an_aggregator_when_nobody_can_say_so(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(1, 1), agent_options=["--unreachable_ms=5s"])
            job.scheduler.kill()
            for rank in job.all_ranks():
                rank.goes_on()
            job.aggregators[0].kill()
            address = job.scheduler.addresses["listen"]
            for rank in job.all_ranks():
                self._error(rank, "JobFailed", "has not reached aggregator 'a0'", address)

    def test_a_silent_aggregator(self) -> None:
        """An aggregator is stopped. The scheduler keeps it, so agents must notice it themselves."""
        limits = ["--silence_ms=6s", "--unreachable_ms=3s"]
        for way in ("--local_transport", "--nolocal_transport"):
            with self.subTest(way=way), Cluster() as cluster:
                job = Job(
                    cluster,
                    nodes=(1, 1),
                    scheduler_options=["--lease_ms=60min"],
                    agent_options=[way, *limits],
                )
                cluster.stop(job.aggregators[0].process)
                for rank in job.all_ranks():
                    self._error(rank, "JobFailed", "has not reached aggregator 'a0'")

    def test_an_aggregator_that_goes_on_in_time(self) -> None:
        with Cluster() as cluster:
            job = Job(
                cluster,
                nodes=(1, 1),
                scheduler_options=["--lease_ms=60min"],
                agent_options=["--silence_ms=6s", "--unreachable_ms=60s"],
            )
            cluster.stop(job.aggregators[0].process)
            for agent in job.agents:
                cluster.wait_for_log(agent, "was silent for 6000 ms: its process is stopped")
            cluster.resume(job.aggregators[0].process)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_the_scheduler_before_the_job_began(self) -> None:
        with Cluster() as cluster:
            scheduler = cluster.scheduler(["--in_memory"])
            address = scheduler.addresses["listen"]
            options = [f"--scheduler={address}", "--min_members=2", "--max_members=2"]
            agent = cluster.agent(0, [*options, "--unreachable_ms=1000"])
            rank = cluster.rank(agent, "steady.py")
            cluster.wait_for_log(agent, "joined job")
            scheduler.kill()
            line = rank.wait_for("talweg.errors.")
            while "has not begun" not in line:
                line = rank.wait_for("talweg.errors.")
            self.assertIn(address, line)
            self.assertNotEqual(rank.process.wait(DEADLINE_S), 0)

    def test_a_stopped_rank_is_waited_for_and_goes_on(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(1, 1))
            late = job.ranks[1][0]
            cluster.stop(late.process)
            # The agent names the missing rank, and nobody fails.
            cluster.wait_for_log(job.agents[0], "node 1")
            self.assertIsNone(job.ranks[0][0].process.poll())
            cluster.resume(late.process)
            for rank in job.all_ranks():
                rank.wait_for("step ")
                rank.wait_for("step ")


if __name__ == "__main__":
    unittest.main()
