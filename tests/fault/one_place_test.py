# SPDX-License-Identifier: Apache-2.0
"""Tests contribution and result in one place, over connections that break at any moment."""

from __future__ import annotations

import json
import random
import subprocess
import unittest

from cluster import DEADLINE_S, TOOL, Cluster, Daemon
from on_the_path import OnThePath, place_of

_TENSOR_BYTES = 6_000_000  # The tensor of in_place.py.
_CUTS = 3
# The first step may end before a connection is cut, the second cuts it, the third needs a new one.
_STEPS = 5


class _OneJob:
    """Two nodes whose ranks sum in place if they can, and a proxy before the only aggregator."""

    def __init__(
        self,
        test: unittest.TestCase,
        cluster: Cluster,
        transport: list[str],
        ranks: int = 1,
        policy: str = "fail_job",
    ) -> None:
        self.path = OnThePath()
        test.addCleanup(self.path.close)
        security = [each for each in transport if each.startswith("--data_security")]
        scheduler = cluster.scheduler(["--in_memory", *security])
        address = scheduler.addresses["listen"]
        options = [*transport, "--local_transport=false"]
        aggregator = cluster.aggregator(address, "a0", [*options, "--advertise=127.0.0.2"])
        self.path.open(place_of(aggregator)[1])
        self.agents = []
        self.ranks = []
        for node in range(2):
            own = [f"--node_rank={node}", f"--rank_count={ranks}", f"--loss_policy={policy}"]
            agent = cluster.agent(
                node,
                [f"--scheduler={address}", "--min_members=2", "--max_members=2", *own, *options],
            )
            self.agents.append(agent)
            self.ranks += [cluster.rank(agent, "in_place.py") for _ in range(ranks)]

    def go_on(self) -> None:
        for rank in self.ranks:
            rank.goes_on(_STEPS)  # A rank reports a step only if its sums are right.


def _memory_bytes(agent: Daemon) -> int:
    line = [str(TOOL), "status", f"--agent={agent.addresses['admin']}", "--json"]
    status = json.loads(subprocess.check_output(line, text=True, timeout=DEADLINE_S))
    return int(status["memory_bytes"])


class OnePlaceTest(unittest.TestCase):
    def test_connections_that_break(self) -> None:
        """A piece on its way is lost with its connection. Rounds go on with the right sums."""
        dice = random.Random(20)

        def cut(_: bytes) -> bytes:
            raise ConnectionAbortedError

        for transport in ([], ["--data_transport=tcp"], ["--data_security=keyed"]):
            for ranks in (1, 2):
                with self.subTest(transport=transport, ranks=ranks), Cluster() as cluster:
                    job = _OneJob(self, cluster, transport, ranks)
                    job.go_on()
                    for _ in range(_CUTS):
                        before = job.path.connections
                        job.path.touch(cut, to_aggregator=dice.random() < 0.5)
                        job.go_on()
                        self.assertTrue(job.path.touched())
                        self.assertGreater(job.path.connections, before)
                    job.go_on()

    def test_memory(self) -> None:
        """An agent holds one place for a tensor if it can, and otherwise more buffers."""
        for policy, ranks, buffers in (
            ("fail_job", 1, 1),
            ("fail_job", 2, 3),
            ("continue", 1, 3),
            ("continue", 2, 5),
        ):
            with self.subTest(policy=policy, ranks=ranks), Cluster() as cluster:
                job = _OneJob(self, cluster, [], ranks, policy)
                job.go_on()
                for agent in job.agents:
                    held = _memory_bytes(agent) / _TENSOR_BYTES
                    self.assertGreaterEqual(held, buffers)
                    self.assertLess(held, buffers + 0.1)


if __name__ == "__main__":
    unittest.main()
