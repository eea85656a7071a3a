# SPDX-License-Identifier: Apache-2.0
"""Tests nodes that catch up while others do too, are lost, or give too much."""

from __future__ import annotations

import os
import signal
import unittest

from catching_up import Job, require_no_open_round
from cluster import DEADLINE_S, Cluster, Rank

_FROZEN = "--frozen=96"
# Megabytes. Each of two survivors logs half of it in a step, and may have 72 MiB unsent.
_TRAINED = "--trained=8"


def _has_caught_up(begun: str) -> bool:
    return ": True " in begun and begun.endswith("None")


# Shorter tests of this file and of catching_up_test cover parts of these.
_long = unittest.skipUnless(os.environ.get("TALWEG_TEST_FULL"), "takes minutes: ./test --full")


class SeveralTest(unittest.TestCase):
    @_long
    def test_two_nodes_at_once(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [_FROZEN])
            gate = cluster.directory / "gate"
            joiners = [job.add(node, [f"--begins-when={gate}"]) for node in (2, 3)]
            for rank in job.ranks[:2]:
                rank.wait_for("beside 2 beside 3")
            gate.touch()
            for joiner in joiners:
                begun = joiner.wait_for("begins ")
                self.assertTrue(_has_caught_up(begun), begun)
            for rank in job.ranks:
                rank.wait_for("of 4 ranks")
                rank.goes_on()
            # Node 0 gives to node 1, and to each of these.
            self.assertEqual(job.ranks[0].seen.count("gives"), 3)
            require_no_open_round(self, job.agents)
            job.end(self, [0, 1, 2, 3])

    def _stops_in_load(self, job: Job, node: int) -> Rank:
        stopped = job.add(node, ["--stops-in=load"])
        stopped.wait_for("stops")
        return stopped

    def test_one_enters_while_another_takes(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [_FROZEN])
            stopped = self._stops_in_load(job, 2)
            begun = job.add(3).wait_for("begins ")
            self.assertTrue(_has_caught_up(begun), begun)
            for place in (0, 1, 3):
                job.ranks[place].wait_for("of 3 ranks beside 2")
                job.ranks[place].goes_on()
            cluster.resume(stopped.process)
            begun = stopped.wait_for("begins ")
            self.assertTrue(_has_caught_up(begun), begun)
            self.assertNotIn("gives", job.ranks[3].seen)
            require_no_open_round(self, job.agents)
            job.end(self, [0, 1, 2, 3])

    def test_all_that_give_are_lost_and_one_that_entered_meanwhile_gives(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [_FROZEN])
            stopped = self._stops_in_load(job, 2)
            entered = job.add(3)
            entered.wait_for("of 3 ranks beside 2")
            for node in (0, 1):
                job.agents[node].kill()
            entered.wait_for("of 1 ranks beside 2")
            cluster.resume(stopped.process)
            begun = stopped.wait_for("begins ")
            self.assertTrue(_has_caught_up(begun), begun)
            require_no_open_round(self, job.agents)
            job.end(self, [2, 3])
            if not any("gives" in line for line in entered.seen):
                # The node was stopped so late that it already had the whole state.
                print("SKIPPED: the node that entered had nothing to give")

    @_long
    def test_a_node_with_several_ranks(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [_FROZEN])
            job.add(2, count=2)
            for rank in job.ranks[2:]:
                begun = rank.wait_for("begins ")
                self.assertTrue(_has_caught_up(begun), begun)
            for rank in job.ranks:
                rank.wait_for("of 4 ranks")
            require_no_open_round(self, job.agents)
            job.end(self, [0, 1, 2, 3])

    def test_one_of_several_ranks_fails(self) -> None:
        for phase in ("problem", "load", "apply", "load_rest"):
            with self.subTest(phase=phase), Cluster(with_torch=True) as cluster:
                job = Job(cluster, [_FROZEN])
                job.add(2, [f"--fails-in={phase}"], count=2)
                begun = [rank.wait_for("begins ") for rank in job.ranks[2:]]
                self.assertTrue(any("told to fail" in line for line in begun), begun)
                for rank in job.ranks:
                    rank.wait_for("of 4 ranks")
                require_no_open_round(self, job.agents)
                job.end(self, [0, 1, 2, 3])


class LossTest(unittest.TestCase):
    @_long
    def test_a_joiner_is_lost_and_started_again(self) -> None:
        for phase in ("load", "apply", "load_rest"):
            with self.subTest(phase=phase), Cluster(with_torch=True) as cluster:
                job = Job(cluster, [_FROZEN])
                lost = job.add(2, [f"--dies-in={phase}"])
                self.assertEqual(lost.process.wait(DEADLINE_S), -signal.SIGKILL)
                begun = job.add(2).wait_for("begins ")
                self.assertTrue(_has_caught_up(begun), begun)
                for place in (0, 1, 3):
                    job.ranks[place].wait_for("of 3 ranks")
                require_no_open_round(self, job.agents)
                job.end(self, [0, 1, 3])

    def test_the_last_survivor_is_lost_while_it_gives(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [_FROZEN])
            joiner = job.add(2, ["--stops-in=load"])
            joiner.wait_for("stops")
            job.agents[1].kill()
            job.ranks[0].wait_for("gives")  # It gives its part at first,
            job.ranks[0].wait_for("gives")  # and the whole state when it is the only survivor.
            cluster.resume(joiner.process)
            job.agents[0].kill()
            joiner.wait_for("JobFailed: ")
            self.assertEqual(joiner.process.wait(DEADLINE_S), 1)


class BoundTest(unittest.TestCase):
    def test_a_log_over_its_bound(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, ["--optimizer=sgd", _TRAINED])
            joiner = job.add(2, ["--stops-in=load"])
            joiner.wait_for("stops")
            for _ in range(2):
                job.ranks[0].goes_on()
            cluster.resume(joiner.process)
            begun = joiner.wait_for("begins ")
            self.assertIn("steps make more than the link carries", begun)
            for rank in job.ranks:
                rank.wait_for("of 3 ranks")
                rank.goes_on()
            require_no_open_round(self, job.agents)
            job.end(self, [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
