# SPDX-License-Identifier: Apache-2.0
"""Tests optimizers that compress gradients, with real daemons, while nodes come and are killed."""

from __future__ import annotations

import re
import unittest

from catching_up import Job
from cluster import Cluster

_KEPT = 25  # As in the program.


class CompressionTest(unittest.TestCase):
    def test_nodes_come_and_go(self) -> None:
        """All ranks have equal weights, and keep the same numbers of each gradient."""
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, program="compressed_elastic.py")
            job.add(2).wait_for("begins ")
            for rank in job.ranks:
                rank.wait_for("of 3 ranks")
            job.ranks[1].goes_on()
            job.agents[1].kill()
            left = [job.ranks[place] for place in (0, 2)]
            for rank in left:
                rank.wait_for("of 2 ranks")
            for rank in left:
                rank.goes_on()
            job.end(self, [0, 2])
            weights: dict[str, set[str]] = {}
            counts = set()
            for rank in left:
                for line in rank.seen:
                    found = re.match(r"step (\d+) of .* has (\w+), (\d+)", line)
                    if found is not None:
                        weights.setdefault(found[1], set()).add(found[2])
                        counts.add(int(found[3]))
            self.assertGreater(len(weights), 10)
            self.assertEqual({len(each) for each in weights.values()}, {1})
            self.assertEqual(counts, {_KEPT})


if __name__ == "__main__":
    unittest.main()
