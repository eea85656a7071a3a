# SPDX-License-Identifier: Apache-2.0
"""Tests LocalSGD and DiLoCo in a job that nodes leave and enter: programs/local_elastic.py."""

from __future__ import annotations

import re
import unittest

from catching_up import Job
from cluster import Cluster, Rank

_STEP = re.compile(r"step (\d+) of (\d+) ranks global (\w+)")


def _shared(rank: Rank) -> dict[int, str]:
    """Returns a digest of what ranks must have alike, for each step that the rank has ended."""
    found = (_STEP.match(line) for line in rank.seen)
    return {int(match[1]): match[3] for match in found if match is not None}


class LocalStepsElasticTest(unittest.TestCase):
    def _alike(self, ranks: list[Rank]) -> None:
        told = [_shared(rank) for rank in ranks]
        for one in told:
            for other in told:
                both = one.keys() & other.keys()
                self.assertGreater(len(both), 10)
                self.assertEqual({s: one[s] for s in both}, {s: other[s] for s in both})
        self.assertGreater(len(set(told[0].values())), 10, "this shows nothing")

    def _comes_and_goes(self, how: str, ballast: int = 0) -> None:
        options = [f"--how={how}", f"--ballast={ballast}"]
        with Cluster(with_torch=True) as cluster:
            # Node 1 is a joiner, too.
            job = Job(cluster, options, program="local_elastic.py")
            for node in (2, 3):
                joiner = job.add(node)
                self.assertIn(
                    "True each rank makes steps of its own (LocalSGD, DiLoCo)",
                    joiner.wait_for("begins "),
                )
                for rank in job.ranks:
                    rank.wait_for(f"of {node + 1} ranks")
            for count, node in ((3, 2), (2, 0)):
                for rank in job.ranks:
                    if rank is not job.ranks[2] or node == 2:
                        rank.goes_on(7)
                job.agents[node].kill()
                for place in {2: (0, 1, 3), 0: (1, 3)}[node]:
                    job.ranks[place].wait_for(f"of {count} ranks")
            for place in (1, 3):
                job.ranks[place].goes_on()
            job.end(self, [1, 3])
            owns = {
                line
                for place in (1, 3)
                for line in job.ranks[place].seen
                if line.startswith("own ")
            }
            if not ballast:
                self._alike(job.ranks)
            if how == "streaming":  # Here ranks are never equal without flush().
                self.assertEqual(len(owns), 2, owns)

    def test_local_sgd(self) -> None:
        self._comes_and_goes("local_sgd")

    def test_diloco(self) -> None:
        self._comes_and_goes("diloco")

    def test_streaming(self) -> None:
        self._comes_and_goes("streaming")

    def test_losses_while_much_is_under_way(self) -> None:
        """A fragment takes longer than a step, so nodes come and go while some are under way."""
        self._comes_and_goes("streaming", ballast=32)


if __name__ == "__main__":
    unittest.main()
