# SPDX-License-Identifier: Apache-2.0
"""Tests a job of MXNet that begins with one rank and grows: programs/mxnet_grows.py."""

from __future__ import annotations

import os
import re
import unittest

from catching_up import Job, require_no_open_round
from cluster import Cluster

# How many of the ways to train are tried.
_WAYS = 3 if os.environ.get("TALWEG_TEST_FULL") == "1" else 1


class MxnetGrowsTest(unittest.TestCase):
    def _grow(self, way: str) -> None:
        """Runs ranks that join and make their trainers after others, who had fewer ranks then."""
        with self.subTest(way=way), Cluster() as cluster:
            job = Job(cluster, [way], program="mxnet_grows.py")
            job.add(2)
            for rank in job.ranks:
                rank.wait_for("of 3 ranks")
                rank.goes_on()
            # All ranks hear names that are new to one, also the rank that was alone at first.
            require_no_open_round(self, job.agents, "talweg.join.")
            job.end(self, [0, 1, 2])  # All have the same weights.
            end = re.fullmatch(r"weights (\S+) (\S+) of (\d+) steps", job.ranks[0].seen[-1])
            assert end is not None, job.ranks[0].seen[-1]
            self.assertEqual((-float(end[1]), -float(end[2])), (float(end[3]),) * 2)

    def test_optimizers_and_trainers_of_horovod(self) -> None:
        for way in ("horovod", "horovod_predivided", "horovod_optimizer")[:_WAYS]:
            self._grow(way)

    def test_those_of_byteps_and_a_store(self) -> None:
        for way in ("byteps", "byteps_optimizer", "store")[:_WAYS]:
            self._grow(way)


if __name__ == "__main__":
    unittest.main()
