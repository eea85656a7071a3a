# SPDX-License-Identifier: Apache-2.0
"""Tests a scheduler that is down, when a process fails that only it could declare lost."""

from __future__ import annotations

import time
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, Cluster, Job, Rank


class SilenceTest(unittest.TestCase):
    def _without_scheduler(
        self,
        cluster: Cluster,
        options: Sequence[str],
        nodes: Sequence[int] = (1, 1),
        aggregator_options: Sequence[str] = (),
    ) -> Job:
        """Returns a job that has lost its scheduler, and goes on."""
        job = Job(
            cluster, nodes=nodes, agent_options=options, aggregator_options=aggregator_options
        )
        job.scheduler.kill()
        for rank in job.all_ranks():
            rank.goes_on()
        return job

    def _told(self, job: Job, rank: Rank, *texts: str) -> None:
        line = rank.wait_for("error ")
        for text in (*texts, f"the scheduler at {job.scheduler.addresses['listen']} does not"):
            self.assertIn(text, line)
        self.assertIn("error JobFailed:", line)
        self.assertEqual(rank.process.wait(DEADLINE_S), 3)

    def test_a_node(self) -> None:
        for options in (
            ["--unreachable_ms=3s"],
            ["--unreachable_ms=3s", "--nolocal_transport", "--loss_policy=continue"],
        ):
            with self.subTest(options=options), Cluster() as cluster:
                job = self._without_scheduler(cluster, options, nodes=(1, 2, 1))
                job.agents[2].kill()
                for rank in (*job.ranks[0], *job.ranks[1]):
                    self._told(job, rank, "needs node 2, which has had no connection to aggregator")

    def test_a_node_that_has_stopped(self) -> None:
        """A stopped node's connection is silent, and then breaks, over the network or in memory."""
        for way in ("--local_transport", "--nolocal_transport"):
            with self.subTest(way=way), Cluster() as cluster:
                job = self._without_scheduler(
                    cluster, [way, "--unreachable_ms=2s"], aggregator_options=["--silence_ms=6s"]
                )
                cluster.stop(job.agents[1].process)
                cluster.wait_for_log(job.aggregators[0], "is over: .* was silent for 6000 ms: ")
                self._told(job, job.ranks[0][0], "needs node 1, which has had no connection")

    def test_a_late_rank_is_waited_for(self) -> None:
        with Cluster() as cluster:
            job = self._without_scheduler(cluster, ["--unreachable_ms=1s"])
            late = job.ranks[1][0]
            cluster.stop(late.process)
            # After more than four times the limit the node still counts as alive, because its agent
            # is connected.
            cluster.wait_for_log(job.agents[0], r"waits since ([4-9]|\d\d)\S* s for node 1")
            cluster.resume(late.process)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_a_scheduler_that_comes_back_in_time_decides(self) -> None:
        with Cluster() as cluster:
            store = cluster.directory / "store.sqlite"
            job = Job(
                cluster,
                nodes=(1, 1),
                store=store,
                scheduler_options=["--lease_ms=2s"],
                agent_options=["--unreachable_ms=60s"],
            )
            job.scheduler.kill()
            job.agents[1].kill()
            cluster.wait_for_log(job.agents[0], r"node 1 \(no connection for \d+ ms\)")
            address = job.scheduler.addresses["listen"]
            options = [f"--listen={address}", *job.store_options, "--lease_ms=2s"]
            cluster.start("scheduler", "scheduler.again", options)
            line = job.ranks[0][0].wait_for("error ")
            self.assertRegex(line, "error JobFailed: .*agent of node 1.* was silent for 2 s")

    def test_a_scheduler_that_comes_and_goes_decides_nothing(self) -> None:
        """A new scheduler gives new leases to all, also to the dead, and ends before they lapse."""
        with Cluster() as cluster:
            store = cluster.directory / "store.sqlite"
            job = Job(cluster, nodes=(1, 1), store=store, agent_options=["--unreachable_ms=12s"])
            survivor = job.ranks[0][0]
            job.scheduler.kill()
            job.agents[1].kill()
            options = [f"--listen={job.scheduler.addresses['listen']}", *job.store_options]
            scheduler, lives = job.scheduler, 0
            end = time.monotonic() + DEADLINE_S

            def heard(text: str) -> None:
                while survivor.process.poll() is None:
                    if cluster.log(job.agents[0]).count(text) >= lives:
                        return
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.01)

            while survivor.process.poll() is None:
                lives += 1
                scheduler.kill()
                heard("cannot be reached")
                scheduler = cluster.start("scheduler", f"scheduler.{lives}", options)
                heard("the scheduler answers again")
            self.assertGreater(lives, 1)
            line = survivor.wait_for("error JobFailed:")
            self.assertIn("needs node 1, which has had no connection to aggregator", line)


if __name__ == "__main__":
    unittest.main()
