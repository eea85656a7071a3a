# SPDX-License-Identifier: Apache-2.0
"""Tests rounds that go on without late ranks, with real daemons that are killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unittest

from catching_up import Job as CatchingUp
from cluster import DEADLINE_S, RUNFILES, TOOL, Cluster, Job, Rank

_STEPS = 60


def _steps_of(rank: Rank) -> list[tuple[int, list[int]]]:
    """The rank's next steps, each with the contributions of every rank that it has got by then."""
    steps = []
    for _ in range(_STEPS):
        found = re.search(r"step ([0-9]+) of .* has got (.*)", rank.wait_for(" has got "))
        assert found is not None
        steps.append((int(found[1]), json.loads(found[2])))
    return steps


def _obedient(job: Job) -> tuple[list[Rank], Rank]:
    """Returns the first two ranks, and the last one. Ranks of one node get numbers as they come."""
    ranks = sorted(job.all_ranks(), key=lambda rank: "".join(rank.seen))
    return ranks[:2], ranks[2]


def _take(rank: Rank) -> str:
    rank.tell("take")
    return rank.wait_for("step ")


class PatienceTest(unittest.TestCase):
    def test_late_ranks_are_left_out_and_nothing_is_lost(self) -> None:
        """On several nodes, of which one has a late rank among others, and on one node alone."""
        for nodes in ((1, 1, 2), (2, 1), (3,)):
            with self.subTest(nodes=nodes), Cluster() as cluster:
                job = Job(cluster, nodes=nodes, program="patient.py")
                late = sum(nodes) - 1
                steps = _steps_of(job.ranks[0][0])
                self.assertTrue(any(got[late] < step for step, got in steps), steps)
                # What it gave late has come with what it gave next.
                self.assertTrue(any(got[late] == step for step, got in steps), steps)
                self.assertTrue(all(max(got) <= step for step, got in steps), steps)
                for rank in job.all_ranks():
                    rank.wait_for("all alike")

    def test_a_rank_that_is_always_behind(self) -> None:
        """On several nodes, on one of several ranks, and on one alone."""
        for nodes in ((1, 1, 1), (1, 2), (3,)):
            with self.subTest(nodes=nodes), Cluster() as cluster:
                early, late = _obedient(Job(cluster, nodes=nodes, program="obeys.py"))
                for step in range(1, 9):
                    for rank in early:
                        rank.tell("push")
                    for rank in early:
                        self.assertEqual(_take(rank), f"step {step} has [1, 1, 0] of 3 ranks")
                    late.tell("push")
                    self.assertEqual(_take(late), f"step {step} has [1, 1, 0] of 3 ranks")
                # Now it is waited for.
                for rank in (*early, late):
                    rank.tell("push")
                for rank in (*early, late):
                    self.assertEqual(_take(rank), "step 9 has [1, 1, 9] of 3 ranks")

    def test_a_rank_that_takes_its_result_late(self) -> None:
        """It was in time, and the next round is over when it looks."""
        for nodes in ((1, 1, 1), (3,)):
            with self.subTest(nodes=nodes), Cluster() as cluster:
                early, late = _obedient(Job(cluster, nodes=nodes, program="obeys.py"))
                for rank in (*early, late):
                    rank.tell("push")
                for step, counts in ((1, "[1, 1, 1]"), (2, "[1, 1, 0]")):
                    for rank in early:
                        self.assertEqual(_take(rank), f"step {step} has {counts} of 3 ranks")
                        rank.tell("push")
                self.assertEqual(_take(late), "step 1 has [1, 1, 1] of 3 ranks")
                late.tell("push")
                self.assertEqual(_take(late), "step 2 has [1, 1, 0] of 3 ranks")

    def test_the_example_measures(self) -> None:
        program = [str(RUNFILES / "examples" / "patience.py"), "--turns=1", "--steps=5"]
        line = [str(TOOL), "run", "--nodes=2", "--", sys.executable, "-P", *program]
        done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        strict, patient, least = done.stdout.splitlines()
        self.assertRegex(strict, "waiting for all: .* ms a step")
        self.assertRegex(patient, "with patience: .* ms a step")
        self.assertRegex(least, "the least: .* ms")

    def test_an_optimizer_while_nodes_come_and_go(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = CatchingUp(cluster, [], program="patient_elastic.py")
            for node in (2, 3):
                job.add(node).wait_for("begins ")
                for rank in job.ranks:
                    rank.wait_for(f"of {node + 1} ranks")
            job.ranks[1].goes_on()
            job.agents[2].kill()
            left = [job.ranks[place] for place in (0, 1, 3)]
            for rank in left:
                rank.wait_for("of 3 ranks")
            for rank in left:
                rank.goes_on()
            job.end(self, [0, 1, 3])
            weights: dict[str, set[str]] = {}
            late = 0
            for rank in left:
                for line in rank.seen:
                    found = re.match(r"step (\d+) of .* has (\w+), (\d+)", line)
                    if found is not None:
                        weights.setdefault(found[1], set()).add(found[2])
                        late = max(late, int(found[3]))
            self.assertGreater(len(weights), 20)
            self.assertEqual({len(each) for each in weights.values()}, {1})
            self.assertGreater(late, 0, "nobody was left out")

    def test_a_parameter_that_thaws(self) -> None:
        """At one rank alone it is an error at all, although none of them ends."""
        with Cluster(with_torch=True) as cluster:
            for who, when in (("2", 0), ("2", 20), ("all", 20)):
                with self.subTest(who=who, when=when):
                    agent = cluster.agent(
                        0, ["--standalone", "--rank_count=3"], name=f"agent.{who}.{when}"
                    )
                    options = [who, str(when)]
                    ranks = [cluster.rank(agent, "patient_thaws.py", options) for _ in range(3)]
                    for rank in ranks:
                        if who == "all":
                            rank.wait_for("step 59 ")
                            continue
                        line = rank.wait_for("error ")
                        self.assertRegex(line, "Mismatch: .*'0.weight' of shape .64, 20., frozen")
                        self.assertRegex(line, "at rank 0, but '0.weight' of .* at rank 2: ")

    def test_losses(self) -> None:
        for policy in ("an aggregator", "an agent"):
            with self.subTest(policy), Cluster() as cluster:
                job = Job(
                    cluster,
                    nodes=(1, 1, 2),
                    aggregators=3,
                    program="patient.py",
                    agent_options=["--loss_policy=continue"],
                    options_of_agent=lambda _: ["--min_members=1"],
                )
                killed = job.aggregators[0] if policy == "an aggregator" else job.agents[1]
                killed.kill()
                survivors = [*job.ranks[0], *job.ranks[2]]
                for rank in survivors:
                    rank.goes_on()
                for rank in survivors:
                    rank.wait_for("all alike")


if __name__ == "__main__":
    unittest.main()
