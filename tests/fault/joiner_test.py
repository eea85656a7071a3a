# SPDX-License-Identifier: Apache-2.0
"""Tests what programs may do when a node joins and one is lost: programs/meets_joiner.py."""

from __future__ import annotations

import re
import unittest

from catching_up import Job, require_no_open_round
from cluster import Cluster, Rank

_STEP = re.compile(r"step (\d+) epoch (\d+) sums (\d+) of (\d+) ranks")


def _steps(rank: Rank) -> dict[int, tuple[int, int, int]]:
    """Returns for each step the epoch, the ranks in its sum, and the number of ranks."""
    found = (_STEP.match(line) for line in rank.seen)
    return {int(m[1]): (int(m[2]), int(m[3]), int(m[4])) for m in found if m is not None}


class JoinerTest(unittest.TestCase):
    def test_a_node_joins_and_another_is_lost(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, program="meets_joiner.py")
            joiner = job.add(2)
            self.assertEqual(joiner.wait_for("joiner "), "joiner True")
            with self.subTest("what it may not call"):
                for call in ("push_pull", "broadcast", "declare", "broadcast_object", "end_step"):
                    self.assertRegex(
                        joiner.wait_for(f"refused {call} "),
                        f"refused {call} NotSynchronized: .* call begin.. of a talweg.State",
                    )
            self.assertIn("begins False this State cannot be replayed", joiner.wait_for("begins "))
            for rank in job.ranks:
                rank.wait_for("of 3 ranks")
                rank.goes_on()
            with self.subTest("no round stays open"):
                require_no_open_round(self, job.agents)
            job.agents[1].kill()
            left = [job.ranks[0], joiner]
            for rank in left:
                rank.wait_for("of 2 ranks")
            job.end(self, [0, 2])

            before, after = _steps(left[0]), _steps(left[1])
            # Node 1 has also joined, at the beginning.
            told = [rank.seen[0] for rank in job.ranks]
            self.assertEqual(told, ["joiner False", "joiner True", "joiner True"])
            # From its first step on the joiner is told the same as the others.
            self.assertEqual({step: before[step] for step in after}, after)
            self.assertEqual(sorted(after), list(range(min(after), max(before) + 1)))
            # Epochs grow with each change, and sums have the ranks that are there. The lost rank
            # may be missing in the last two steps before the program is told.
            history = list(before.values())
            self.assertEqual([each[0] for each in history], sorted(each[0] for each in history))
            self.assertEqual(len({each[0] for each in after.values()}), 2)
            for place, (_, summed, size) in enumerate(history):
                is_told_soon = any(each[2] < size for each in history[place : place + 3])
                self.assertIn(summed, {size, size - 1} if is_told_soon else {size})

    def test_a_joiner_that_goes_on_elsewhere(self) -> None:
        """The joiner counts after the step, or takes no batch when the others do. Only the joiner
        is warned, when it has ended its first step.
        """
        for when in ("before", "after", "elsewhere"):
            with self.subTest(when=when), Cluster() as cluster:
                job = Job(cluster, [when], program="late_counter.py", begin_together=True)
                job.add(2).wait_for("begins ")
                for rank in job.ranks:
                    rank.wait_for("of 3 ranks")
                    rank.goes_on()
                job.end(self, [0, 1, 2])
                warned = [
                    sum("change them before that call" in line for line in rank.seen)
                    for rank in job.ranks
                ]
                self.assertEqual(warned, [0, 0, int(when != "before")])

    def test_a_joiner_that_cannot_take_the_state(self) -> None:
        """It raises its error and lives on. The others go on without it."""
        with Cluster() as cluster:
            job = Job(cluster, program="cannot_take.py", begin_together=True)
            joiner = job.add(2, ["joined"])
            self.assertEqual(joiner.wait_for("error "), "error LookupError: it has no room")
            for rank in job.ranks[:2]:
                rank.wait_for("of 2 ranks")
                rank.goes_on()
                rank.wait_for("of 2 ranks")
            self.assertIsNone(joiner.process.poll())
            job.end(self, [0, 1])

    def test_a_rank_that_cannot_take_the_state_at_the_beginning(self) -> None:
        """All raise an error that names it, and live on."""
        with Cluster() as cluster:
            agent = cluster.agent(0, ["--standalone", "--rank_count=3"])
            stop = str(cluster.directory / "stop")
            ranks = [cluster.rank(agent, "cannot_take.py", [stop, "1"]) for _ in range(3)]
            told = [rank.wait_for("error ") for rank in ranks]
            self.assertEqual(told.count("error LookupError: it has no room"), 1, told)
            text = r"error InvalidArgument: rank 1 cannot use .* \(LookupError: it has no room\)"
            self.assertEqual(sum(bool(re.match(text, line)) for line in told), 2, told)


if __name__ == "__main__":
    unittest.main()
