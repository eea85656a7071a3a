# SPDX-License-Identifier: Apache-2.0
"""Tests that ranks with local steps leave no round open when they differ: programs/local_apart.py."""

from __future__ import annotations

import unittest

from cluster import DEADLINE_S, Cluster


class LocalStepsApartTest(unittest.TestCase):
    def _leaves_first(self, how: str, first: int) -> None:
        with Cluster(with_torch=True) as cluster:
            agent = cluster.agent(0, ["--standalone", "--rank_count=2"])
            ranks = [cluster.rank(agent, "local_apart.py", [how]) for _ in range(2)]
            ranks.sort(key=lambda rank: rank.wait_for("rank "))
            for rank in ranks:
                self.assertIn("error Mismatch: ", rank.wait_for("error "))
            leaver, other = ranks[first], ranks[1 - first]
            leaver.tell("leave")
            leaver.wait_for("left")
            self.assertEqual(leaver.process.wait(DEADLINE_S), 0)
            other.tell("go on")
            self.assertEqual(other.wait_for("goes "), "goes on")
            self.assertEqual(other.process.wait(DEADLINE_S), 0)
            self.assertIn(agent.process.poll(), (None, 0), cluster.log(agent))

    def test_either_rank_may_leave_first_after_a_mismatch(self) -> None:
        for how in ("thaws", "flushes", "loads"):
            for first in (0, 1):
                with self.subTest(how=how, first=first):
                    self._leaves_first(how, first)


if __name__ == "__main__":
    unittest.main()
