# SPDX-License-Identifier: Apache-2.0
"""Tests tensors that travel encoded, with real daemons that are killed and cut off."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, TOOL, Cluster, Daemon, Job
from on_the_path import OnThePath, place_of

_TENSOR_BYTES = 1_200_000  # A tensor of encoded.py.
_CUTS = 3
_NETWORK = "--local_transport=false"
# The programs whose sums travel encoded, with what their agents must be told for that.
_PROGRAMS: dict[str, list[str]] = {"encoded.py": [], "rounded.py": ["--encoding=int8"]}


def _sent(agent: Daemon) -> tuple[int, int]:
    """Returns how many bytes an agent has sent, and how many its ranks have pushed."""
    line = [str(TOOL), "status", f"--agent={agent.addresses['admin']}", "--json"]
    status = json.loads(subprocess.check_output(line, text=True, timeout=DEADLINE_S))
    return int(status["bytes_sent"]), int(status["bytes_pushed"])


def _bytes_sent_of_a_byte(
    cluster: Cluster, name: str, program: str, arguments: Sequence[str], *agent_options: str
) -> float:
    """How many bytes an agent sends for each byte that its rank pushes."""
    scheduler = cluster.scheduler(["--in_memory"])
    address = scheduler.addresses["listen"]
    cluster.aggregator(address, f"of-{name}", [_NETWORK])
    options = [f"--scheduler={address}", "--rank_count=1", "--min_members=1", "--max_members=1"]
    agent = cluster.agent(0, [*options, f"--job={name}", _NETWORK, *agent_options], name=name)
    rank = cluster.rank(agent, program, arguments)
    rank.wait_for("step 3 ")
    sent_before, pushed_before = _sent(agent)
    rank.goes_on(50)
    sent_after, pushed_after = _sent(agent)
    # A round that is under way is pushed, and sent in part.
    return (sent_after - sent_before) / (pushed_after - pushed_before)


class EncodingsTest(unittest.TestCase):
    def test_bytes_that_travel(self) -> None:
        with Cluster() as cluster:
            for encoding, least in (("plain", 0.9), ("twice", 1.8)):
                sent = _bytes_sent_of_a_byte(cluster, encoding, "encoded.py", [encoding])
                self.assertGreater(sent, least)
        with Cluster() as cluster:
            for encoding, most in (("runs", 0.1), ("gaps", 0.02)):
                sent = _bytes_sent_of_a_byte(cluster, encoding, "encoded.py", [encoding])
                self.assertLess(sent, most)

    def test_bytes_that_travel_rounded(self) -> None:
        """The agents' option rounds what ranks give without a word of it."""
        with Cluster() as cluster:
            for encoding, least, most in (
                ("bf16", 0.45, 0.55),
                ("int8", 0.22, 0.29),
                ("few", 0.22, 0.29),
            ):
                option = f"--encoding={encoding}"
                sent = _bytes_sent_of_a_byte(cluster, encoding, "rounded.py", [], option)
                self.assertGreater(sent, least)
                self.assertLess(sent, most)

    def test_bytes_that_travel_of_two_numbers(self) -> None:
        """They take a bit each, and are exact."""
        with Cluster() as cluster:
            sent = _bytes_sent_of_a_byte(
                cluster, "signs", "rounded.py", ["signs"], "--encoding=few"
            )
            self.assertLess(sent, 0.05)

    def test_a_small_tensor_travels_plain(self) -> None:
        options = ("--encoding=int8", f"--encoding_bytes_min={_TENSOR_BYTES + 1}")
        with Cluster() as cluster:
            sent = _bytes_sent_of_a_byte(cluster, "small", "rounded.py", ["plain"], *options)
            self.assertGreater(sent, 0.9)

    def test_agents_that_disagree(self) -> None:
        """Every rank gets an error that names both encodings."""
        with Cluster() as cluster:
            address = cluster.scheduler(["--in_memory"]).addresses["listen"]
            cluster.aggregator(address, "a0", [_NETWORK])
            own = [f"--scheduler={address}", "--min_members=2", "--max_members=2", _NETWORK]
            ranks = []
            for node, encoding in enumerate(("plain", "int8")):
                place = [f"--node_rank={node}", "--rank_count=1", f"--encoding={encoding}"]
                ranks.append(cluster.rank(cluster.agent(node, [*own, *place]), "rounded.py"))
            for rank in ranks:
                line = rank.wait_for("error ")
                self.assertIn("Mismatch", line)
                self.assertIn("sum encoded as int8", line)
                self.assertIn("TALWEG_ENCODING", line)

    def test_an_aggregator_dies(self) -> None:
        """The others cut its slices anew. The survivors go on with the right sums."""
        for program, way in itertools.product(_PROGRAMS, (_NETWORK, "--local_transport")):
            with self.subTest(program=program, way=way), Cluster() as cluster:
                job = Job(
                    cluster,
                    nodes=(2, 1),
                    aggregators=3,
                    program=program,
                    aggregator_options=[way],
                    agent_options=["--loss_policy=continue", way, *_PROGRAMS[program]],
                )
                for aggregator in job.aggregators[:2]:
                    aggregator.kill()
                    for rank in job.all_ranks():
                        rank.goes_on()

    def test_an_agent_dies(self) -> None:
        for program, options in _PROGRAMS.items():
            with self.subTest(program=program), Cluster() as cluster:
                job = Job(
                    cluster,
                    nodes=(1, 2, 1),
                    aggregators=2,
                    program=program,
                    agent_options=["--loss_policy=continue", *options],
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

        policies = ("fail_job", "continue")
        for (program, options), policy in itertools.product(_PROGRAMS.items(), policies):
            with self.subTest(program=program, policy=policy), Cluster() as cluster:
                path = OnThePath()
                self.addCleanup(path.close)
                scheduler = cluster.scheduler(["--in_memory"])
                address = scheduler.addresses["listen"]
                aggregator = cluster.aggregator(address, "a0", [_NETWORK, "--advertise=127.0.0.2"])
                path.open(place_of(aggregator)[1])
                own = [f"--scheduler={address}", "--min_members=2", "--max_members=2", _NETWORK]
                own += [f"--loss_policy={policy}", *options]
                ranks = []
                for node, count in enumerate((1, 2)):
                    place = [f"--node_rank={node}", f"--rank_count={count}"]
                    agent = cluster.agent(node, [*own, *place])
                    ranks += [cluster.rank(agent, program) for _ in range(count)]
                for _ in range(_CUTS):
                    for rank in ranks:
                        rank.goes_on(5)
                    path.touch(cut, to_aggregator=dice.random() < 0.5)
                    for rank in ranks:
                        rank.goes_on(5)
                    self.assertTrue(path.touched())


if __name__ == "__main__":
    unittest.main()
