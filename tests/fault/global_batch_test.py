# SPDX-License-Identifier: Apache-2.0
"""Tests scale="global_batch" when a node is lost and comes back: programs/global_batch.py."""

from __future__ import annotations

import re
import unittest

from catching_up import Job
from cluster import DEADLINE_S, Cluster, Rank

_STEP = re.compile(
    r"step (\d+) of (\d+) ranks samples (\d+) rate (\S+) after (\S+) summed (\d+) off (\S+)"
)
_FULL = 8  # The samples in a step of two ranks. An epoch has 30.


class GlobalBatchTest(unittest.TestCase):
    def _check(self, rank: Rank) -> dict[int, set[int]]:
        """Checks a rank's steps. Returns the numbers of samples in them, by the number of ranks."""
        seen: dict[int, set[int]] = {1: set(), 2: set()}
        steps = [match for line in rank.seen if (match := _STEP.match(line))]
        sizes = [int(match[2]) for match in steps]
        for place, match in enumerate(steps):
            size, samples, summed = int(match[2]), int(match[3]), int(match[6])
            with self.subTest(line=match[0]):
                self.assertAlmostEqual(float(match[4]), samples / _FULL)
                self.assertEqual(float(match[5]), 1.0)
                # A lost rank may be missing in the last sums before the program is told.
                if min(sizes[place : place + 3]) == size and summed == size:
                    self.assertLess(float(match[7]), 1e-12)
                    seen[size].add(samples)
        return seen

    def test_a_loss_and_a_return(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, program="global_batch.py", begin_together=True)
            for rank in job.ranks:
                self.assertEqual(rank.seen[0], f"begins {_FULL}")
                rank.goes_on()
            job.agents[1].kill()
            job.ranks[1].process.kill()
            job.ranks[1].process.wait(DEADLINE_S)
            survivor = job.ranks[0]
            survivor.wait_for("of 1 ranks")
            survivor.goes_on()
            joiner = job.add(1)
            self.assertEqual(joiner.wait_for("begins "), f"begins {_FULL}")
            for rank in (survivor, joiner):
                rank.wait_for("of 2 ranks")
                rank.goes_on()
            job.end(self, [0, 2])
            # The last step of an epoch has the rest of the samples.
            self.assertLessEqual({8, 6}, self._check(joiner)[2])
            alone = self._check(survivor)
            self.assertLessEqual({8, 6}, alone[2])
            self.assertLessEqual({4, 2}, alone[1])


if __name__ == "__main__":
    unittest.main()
