# SPDX-License-Identifier: Apache-2.0
"""Tests a node that joins a job of two, and takes over their state beside their steps."""

from __future__ import annotations

import os
import signal
import time
import unittest
from collections.abc import Sequence

from catching_up import Job, beside, open_catch_ups, require_no_open_round
from cluster import DEADLINE_S, Cluster

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"

# Megabytes. The state travels as long as many steps take.
_FROZEN_MB = 96


class CatchUpTest(unittest.TestCase):
    def _joins(self, options: Sequence[str], least_steps: int, program: str = "catch_up.py") -> str:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, options, program=program)
            joiner = job.add(2)
            begun = joiner.wait_for("begins ")
            self.assertIn(": True ", begun)
            for rank in job.ranks:
                rank.wait_for("of 3 ranks")
                rank.goes_on()
            self.assertGreaterEqual(beside(job.ranks[0], 2), least_steps, job.ranks[0].seen)
            require_no_open_round(self, job.agents)
            job.end(self, [0, 1, 2])
            return begun

    def test_beside_the_steps(self) -> None:
        for optimizer in ("adam", "sgd")[: 2 if _FULL else 1]:
            with self.subTest(optimizer=optimizer):
                begun = self._joins([f"--optimizer={optimizer}", f"--frozen={_FROZEN_MB}"], 10)
                self.assertTrue(begun.endswith("True None"), begun)

    def test_the_end_of_a_step_copies_nothing(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [f"--frozen={_FROZEN_MB}"])
            job.add(2)
            for rank in job.ranks[:2]:
                # Each survivor copies one half.
                copied = rank.wait_for("copies ").split()
                self.assertEqual(copied[1], "0")
                self.assertGreater(int(copied[3]), _FROZEN_MB << 19)
            job.ranks[2].wait_for("begins ")
            require_no_open_round(self, job.agents)
            job.end(self, [0, 1, 2])

    def test_nobody_waits_for_digests_but_the_joiners(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [f"--frozen={_FROZEN_MB}"])
            joiner = job.add(2)
            joiner.wait_for("begins ")
            for rank in job.ranks:
                rank.wait_for("of 3 ranks")
                rank.goes_on()
            require_no_open_round(self, job.agents)
            job.end(self, [0, 1, 2])
            for rank in job.ranks[:2]:
                self.assertNotIn("digests", rank.seen[rank.seen.index("gives") :])
            self.assertEqual(joiner.seen.count("digests"), 1)

    def test_nobody_warns_of_a_standby_that_takes_its_time(self) -> None:
        """A standby's open rounds show in the status, without the warnings of slow rounds."""
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster)
            gate = cluster.directory / "gate"
            joiner = job.add(2, [f"--begins-when={gate}"])
            survivors = job.agents[:2]
            end, waited = time.monotonic() + DEADLINE_S, 0.0
            while waited < 4.0:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.1)
                waits = [float(each["waited"][:-1]) for each in open_catch_ups(survivors)]
                waited = min(waits) if len(waits) == 2 else 0.0
            for agent in survivors:
                self.assertNotIn("tensor 'talweg.catch_up.", cluster.log(agent))
            gate.touch()
            joiner.wait_for("begins ")
            require_no_open_round(self, job.agents)
            job.end(self, [0, 1, 2])

    def test_a_joiner_strays_in_its_first_step(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [f"--frozen={_FROZEN_MB}"])
            joiner = job.add(2, ["--strays"])
            begun = joiner.wait_for("begins ")
            self.assertTrue(begun.endswith("True None"), begun)
            for rank in job.ranks:
                self.assertRegex(rank.wait_for("error "), "ranks .2. hold other parameters than")
                self.assertEqual(rank.process.wait(DEADLINE_S), 3)
            # The digests of its first step are compared at the end of the next step.
            self.assertEqual(sum(line.startswith("step ") for line in joiner.seen), 1)

    def test_a_program_without_a_framework(self) -> None:
        for option, steps, why in (
            ("--touch=0", 10, "True None"),
            ("--touch=1", 1, "not those of the others"),
            ("--no-hook", 0, "this State cannot be replayed"),
        ):
            with self.subTest(option=option):
                options = [option, f"--frozen={_FROZEN_MB}"]
                begun = self._joins(options, steps, "catch_up_numpy.py")
                self.assertTrue(begun.endswith(why), begun)

    def test_what_cannot_be_replayed_is_taken_whole(self) -> None:
        begun = self._joins(["--optimizer=lbfgs"], 1)
        self.assertIn("LBFGS evaluates the loss", begun)

    def test_what_the_optimizer_has_not_done_is_noticed(self) -> None:
        begun = self._joins(["--touch=1", f"--frozen={_FROZEN_MB}"], 1)
        self.assertIn("not those of the others", begun)

    def test_a_joiner_is_lost(self) -> None:
        for phase in ("apply", "load", "load_rest")[: 3 if _FULL else 1]:
            with self.subTest(phase=phase), Cluster(with_torch=True) as cluster:
                job = Job(cluster, [f"--frozen={_FROZEN_MB}"])
                lost = job.add(2, [f"--dies-in={phase}"])
                self.assertEqual(lost.process.wait(DEADLINE_S), -signal.SIGKILL)
                begun = job.add(3).wait_for("begins ")
                self.assertTrue(begun.endswith("True None"), begun)
                for place in (0, 1, 3):
                    job.ranks[place].wait_for("of 3 ranks")
                require_no_open_round(self, job.agents)
                job.end(self, [0, 1, 3])

    def test_a_survivor_is_lost(self) -> None:
        """A survivor that gives its state is lost. Node 0 has given its state to node 1 before."""
        for node, phase in ((1, "snapshot"), (0, "")):
            with self.subTest(node=node), Cluster(with_torch=True) as cluster:
                job = Job(cluster, [f"--frozen={_FROZEN_MB}"], {node: phase} if phase else {})
                joiner = job.add(2)
                if phase:
                    self.assertEqual(job.ranks[node].process.wait(DEADLINE_S), -signal.SIGKILL)
                else:
                    job.ranks[node].wait_for("beside 2")
                    job.agents[node].kill()
                self.assertIn(": True ", joiner.wait_for("begins "))
                others = [1 - node, 2]
                for place in others:
                    job.ranks[place].wait_for("of 2 ranks")
                require_no_open_round(self, job.agents)
                job.end(self, others)


if __name__ == "__main__":
    unittest.main()
