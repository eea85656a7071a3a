# SPDX-License-Identifier: Apache-2.0
"""Tests asynchronous steps of ranks that lose others, or an aggregator: asynchronous_counts.py."""

from __future__ import annotations

import json
import re
import signal
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, Cluster, Job, Rank

_CONTINUE = ("--loss_policy=continue", "--min_members=1", "--gather_ms=120s")


class AsynchronousFaultsTest(unittest.TestCase):
    def _job(self, cluster: Cluster, options: Sequence[str] = (), aggregators: int = 1) -> Job:
        return Job(
            cluster,
            nodes=(1, 1, 1),
            aggregators=aggregators,
            program="asynchronous_counts.py",
            agent_options=options,
        )

    def _ended(self, ranks: Sequence[Rank]) -> dict[int, list[int]]:
        """Has the ranks end one after another, with more steps between. Checks that they end with
        equal numbers, which have each one's own steps. Returns these numbers by rank.
        """
        for place, rank in enumerate(ranks):
            rank.tell("stop")
            for other in ranks[place + 1 :]:
                other.goes_on(5)
        numbers: dict[int, list[int]] = {}
        for rank in ranks:
            found = re.search(r"rank (\d+) made (\d+) of (\[.*\])", rank.wait_for(" made "))
            assert found is not None
            own = int(found[1])
            numbers[own] = json.loads(found[3])
            self.assertEqual(numbers[own][own], int(found[2]))
            self.assertEqual(rank.process.wait(DEADLINE_S), 0)
        self.assertEqual(len({str(each) for each in numbers.values()}), 1, numbers)
        return numbers

    def test_ranks_end_one_after_another(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = self._job(cluster)
            self._ended(job.all_ranks())

    def test_an_aggregator_is_lost(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = self._job(cluster, _CONTINUE, aggregators=2)
            job.aggregators[0].kill()
            for rank in job.all_ranks():
                rank.goes_on()
            self._ended(job.all_ranks())

    def test_a_node_is_lost_and_the_others_go_on(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = self._job(cluster, _CONTINUE)
            lost = job.ranks[1][0]
            lost.process.send_signal(signal.SIGKILL)
            job.agents[1].kill()
            others = [job.ranks[0][0], job.ranks[2][0]]
            for rank in others:
                rank.goes_on()
            self._ended(others)

    def test_a_rank_is_lost_and_the_job_with_it(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = self._job(cluster)
            job.ranks[1][0].process.send_signal(signal.SIGKILL)
            for rank in (job.ranks[0][0], job.ranks[2][0]):
                self.assertRegex(rank.wait_for("error "), "JobFailed|Aborted")
                self.assertEqual(rank.process.wait(DEADLINE_S), 3)

    def test_a_rank_stands_still_for_a_while(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = self._job(cluster)
            cluster.stop(job.ranks[1][0].process)
            cluster.resume(job.ranks[1][0].process)
            for rank in job.all_ranks():
                rank.goes_on()
            self._ended(job.all_ranks())


if __name__ == "__main__":
    unittest.main()
