# SPDX-License-Identifier: Apache-2.0
"""A rank of torch.distributed over Talweg dies, or its host falls silent, while all others make
calls of every kind.
"""

from __future__ import annotations

import statistics
import time
import unittest

from cluster import DEADLINE_S, Cluster, Job, Rank

_CALLS = (
    "backward",
    "small",
    "long",
    "future",
    "gather",
    "exchange",
    "receive",
    "barrier",
    "objects",
)

# docs/torch.md promises about a second. This is ten times as long, for a machine with other work.
_RAISES_S = 10.0


class C10dKillTest(unittest.TestCase):
    def _kill_rank_1(self, ranks: list[Rank], where: str) -> None:
        [victim] = [rank for rank in ranks if rank.seen[-1].endswith("of rank 1")]
        others = [rank for rank in ranks if rank is not victim]
        for rank in others:
            rank.tell("go on")
            rank.wait_for("begun")
        killed = time.monotonic()
        victim.process.kill()
        took_s = []
        for rank in others:
            for name in _CALLS:
                line = rank.wait_for(f"{name} ends ")
                took_s.append(time.monotonic() - killed)
                self.assertIn(f"{name} ends JobFailed: ", line)
                self.assertIn(f"rank 1 ({where}, pid {victim.process.pid})", line)
        print(
            f"{self.id()}: {len(took_s)} calls of {len(others)} ranks have raised, half of them "
            f"{statistics.median(took_s) * 1000:.0f} ms after the kill, all after "
            f"{max(took_s) * 1000:.0f} ms"
        )
        self.assertLess(max(took_s), _RAISES_S)
        for rank in others:
            assert rank.process.stdin is not None
            rank.process.stdin.close()
            rank.process.wait(DEADLINE_S)

    def test_on_one_node(self) -> None:
        with Cluster(with_torch=True) as cluster:
            agent = cluster.agent(0, ["--standalone", "--rank_count=3"])
            ranks = [cluster.rank(agent, "c10d_under_way.py") for _ in range(3)]
            for rank in ranks:
                rank.wait_for("step 3")
            self._kill_rank_1(ranks, "local rank 1 of node 0")

    def test_on_three_nodes(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, nodes=(1, 1, 1), program="c10d_under_way.py")
            self._kill_rank_1(job.all_ranks(), "local rank 0 of node 1")

    def test_a_host_that_falls_silent(self) -> None:
        """Its agent and its rank stop, and no connection breaks. Its lease ends the calls."""
        with Cluster(with_torch=True) as cluster:
            job = Job(
                cluster,
                nodes=(1, 1, 1),
                program="c10d_under_way.py",
                scheduler_options=["--lease_ms=2s"],
            )
            [silent] = job.ranks[1]
            cluster.stop(silent.process)
            cluster.stop(job.agents[1].process)
            others = [*job.ranks[0], *job.ranks[2]]
            for rank in others:
                rank.tell("go on")
                rank.wait_for("begun")
            for rank in others:
                for name in _CALLS:
                    line = rank.wait_for(f"{name} ends ")
                    self.assertRegex(line, f"{name} ends JobFailed: .*node 1.* was silent for 2 s")


if __name__ == "__main__":
    unittest.main()
