# SPDX-License-Identifier: Apache-2.0
"""Tests tensors that travel encoded, with real daemons that are killed and cut off."""

from __future__ import annotations

import json
import random
import subprocess
import unittest

from cluster import DEADLINE_S, TOOL, Cluster, Daemon, Job
from on_the_path import OnThePath, place_of

_TENSOR_BYTES = 1_200_000  # A tensor of encoded.py.
_CUTS = 3
_NETWORK = "--local_transport=false"


def _sent_bytes(agent: Daemon) -> int:
    line = [str(TOOL), "status", f"--agent={agent.addresses['admin']}", "--json"]
    status = json.loads(subprocess.check_output(line, text=True, timeout=DEADLINE_S))
    return int(status["bytes_sent"])


def _bytes_of_a_step(cluster: Cluster, encoding: str) -> float:
    """How many bytes an agent sends in a step, for each byte of the tensor."""
    scheduler = cluster.scheduler(["--in_memory"])
    address = scheduler.addresses["listen"]
    cluster.aggregator(address, f"of-{encoding}", [_NETWORK])
    options = [f"--scheduler={address}", "--rank_count=1", "--min_members=1", "--max_members=1"]
    agent = cluster.agent(0, [*options, f"--job={encoding}", _NETWORK], name=encoding)
    rank = cluster.rank(agent, "encoded.py", [encoding])
    steps = 50
    rank.wait_for("step 3 ")
    before = _sent_bytes(agent)
    rank.goes_on(steps)
    # At least so many steps lie between the two looks, and not many more.
    return (_sent_bytes(agent) - before) / steps / _TENSOR_BYTES


class EncodingsTest(unittest.TestCase):
    def test_bytes_that_travel(self) -> None:
        with Cluster() as cluster:
            self.assertGreater(_bytes_of_a_step(cluster, "plain"), 0.9)
            self.assertGreater(_bytes_of_a_step(cluster, "twice"), 1.8)
        with Cluster() as cluster:
            self.assertLess(_bytes_of_a_step(cluster, "runs"), 0.1)

    def test_an_aggregator_dies(self) -> None:
        """The others cut its slices anew. The survivors go on with the right sums."""
        for way in (_NETWORK, "--local_transport"):
            with self.subTest(way=way), Cluster() as cluster:
                job = Job(
                    cluster,
                    nodes=(2, 1),
                    aggregators=3,
                    program="encoded.py",
                    aggregator_options=[way],
                    agent_options=["--loss_policy=continue", way],
                )
                for aggregator in job.aggregators[:2]:
                    aggregator.kill()
                    for rank in job.all_ranks():
                        rank.goes_on()

    def test_an_agent_dies(self) -> None:
        with Cluster() as cluster:
            job = Job(
                cluster,
                nodes=(1, 2, 1),
                aggregators=2,
                program="encoded.py",
                agent_options=["--loss_policy=continue"],
                options_of_agent=lambda _: ["--min_members=1"],
            )
            job.agents[1].kill()
            for rank in (*job.ranks[0], *job.ranks[2]):
                rank.wait_for(", 2 in each sum")
                rank.goes_on()

    def test_connections_that_break(self) -> None:
        dice = random.Random(21)

        def cut(_: bytes) -> bytes:
            raise ConnectionAbortedError

        for policy in ("fail_job", "continue"):
            with self.subTest(policy=policy), Cluster() as cluster:
                path = OnThePath()
                self.addCleanup(path.close)
                scheduler = cluster.scheduler(["--in_memory"])
                address = scheduler.addresses["listen"]
                aggregator = cluster.aggregator(address, "a0", [_NETWORK, "--advertise=127.0.0.2"])
                path.open(place_of(aggregator)[1])
                own = [f"--scheduler={address}", "--min_members=2", "--max_members=2", _NETWORK]
                ranks = []
                for node, count in enumerate((1, 2)):
                    place = [f"--node_rank={node}", f"--rank_count={count}"]
                    agent = cluster.agent(node, [*own, *place, f"--loss_policy={policy}"])
                    ranks += [cluster.rank(agent, "encoded.py") for _ in range(count)]
                for _ in range(_CUTS):
                    for rank in ranks:
                        rank.goes_on(5)
                    path.touch(cut, to_aggregator=dice.random() < 0.5)
                    for rank in ranks:
                        rank.goes_on(5)
                    self.assertTrue(path.touched())


if __name__ == "__main__":
    unittest.main()
