# SPDX-License-Identifier: Apache-2.0
"""Tests nodes that enter as a standby, and then into the steps (programs/in_two_stages.py)."""

from __future__ import annotations

import re
import subprocess
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, TOOL, Cluster, Daemon, Rank

_LEASE_MS = 2000


class _Crew:
    def __init__(self, cluster: Cluster, store: bool = False) -> None:
        self.cluster = cluster
        path = cluster.directory / "store.sqlite"
        self._options = [
            f"--store_path={path}" if store else "--in_memory",
            f"--lease_ms={_LEASE_MS}",
        ]
        self.scheduler = cluster.scheduler(self._options)
        self.address = self.scheduler.addresses["listen"]
        for name in ("a0", "a1"):
            cluster.aggregator(self.address, name)
        self.agents: dict[str, Daemon] = {}

    def restart_scheduler(self) -> None:
        self.scheduler.kill()
        self.scheduler = self.cluster.start(
            "scheduler", "scheduler", [f"--listen={self.address}", *self._options]
        )

    def add(self, node: int, life: str = "", options: Sequence[str] = ()) -> Rank:
        name = f"agent{node}{life}"
        self.agents[name] = self.cluster.agent(
            node,
            [
                f"--scheduler={self.address}",
                "--min_members=1",
                "--max_members=3",
                "--gather_ms=60s",
                "--loss_policy=continue",
                f"--node_rank={node}",
                f"--name=node{node}",
                *options,
            ],
            name=name,
        )
        return self.cluster.rank(self.agents[name], "in_two_stages.py")

    def standbys(self) -> list[int]:
        """Returns the nodes that `talweg status` shows as standbys."""
        line = [str(TOOL), "status", f"--scheduler={self.address}", *self.cluster.tool_options]
        text = subprocess.run(
            line, capture_output=True, text=True, check=True, timeout=DEADLINE_S
        ).stdout
        return [int(node) for node in re.findall(r"^\s*(\d+) .* standby ", text, re.MULTILINE)]

    def begin(self, nodes: Sequence[int] = (0, 1)) -> list[Rank]:
        """Starts three nodes, of which the last one dies, so that a place is free."""
        ranks = [self.add(node) for node in range(3)]
        for rank in ranks:
            rank.wait_for("step 3: 3 ranks")
        [victim] = set(range(3)) - set(nodes)
        self.agents[f"agent{victim}"].kill()
        left = [ranks[node] for node in nodes]
        for rank in left:
            rank.wait_for(": 2 ranks")
        return left


def _wait_for_both(rank: Rank, one: str, other: str) -> None:
    """Waits for two lines in any order, because two threads of the program print them."""
    line = rank.wait_for("")
    missing = {one, other}
    while missing := {text for text in missing if text not in line}:
        line = rank.wait_for("")


def _stop(ranks: Sequence[Rank]) -> None:
    ranks[0].tell("stop")
    for rank in ranks:
        rank.wait_for("ended")
        assert rank.process.wait(DEADLINE_S) == 0


class StandbyTest(unittest.TestCase):
    def test_a_node_is_in_the_view_before_it_is_in_the_steps(self) -> None:
        for victim in (2, 0):
            with self.subTest(node=victim), Cluster() as cluster:
                crew = _Crew(cluster)
                left = crew.begin([node for node in range(3) if node != victim])
                joiner = crew.add(victim, "b")
                # The new rank is the first one if its node is 0, and the last one if its node is 2.
                own = 0 if victim == 0 else 2
                joiner.wait_for(f"standby of 3: rank {own} {own}, number 2")
                self.assertIn(f"node {victim} is a standby", joiner.wait_for("declares: "))
                self.assertIn(f"node {victim} is a standby", joiner.wait_for("ends a step: "))
                with_standby = [rank.wait_for(f"standbys [{victim}]") for rank in left]
                joiner.wait_for("met ")
                left[0].wait_for("met ")
                # The others keep their numbers and steps, also while the standby is there.
                for place, (rank, line) in enumerate(zip(left, with_standby, strict=True)):
                    rank.wait_for(": 2 ranks")
                    self.assertIn(f"rank {place} of 2, number {place}, ", line)
                    since = rank.seen[rank.seen.index(line) :]
                    self.assertEqual([line for line in since if ": 3 ranks" in line], [])
                self.assertEqual(crew.standbys(), [victim])
                joiner.tell("ready")
                self.assertIn(
                    f"rank {own} of 3, number {own}, standbys []", joiner.wait_for("epoch ")
                )
                first = joiner.wait_for("step ")
                self.assertIn(": 3 ranks", first)
                for rank in left:
                    entered = rank.wait_for(": 3 ranks")
                    self.assertEqual(entered, first)  # All ranks count the same step.
                    steps = [int(n) for n in re.findall(r"step (\d+):", "\n".join(rank.seen))]
                    self.assertEqual(steps, list(range(1, len(steps) + 1)))
                _stop([*left, joiner])

    def test_a_standby_is_lost(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(cluster)
            left = crew.begin()
            for life in ("b", "c"):
                joiner = crew.add(2, life)
                joiner.wait_for("met ")
                if life == "b":
                    crew.agents["agent2b"].kill()
                else:
                    joiner.process.kill()
                _wait_for_both(left[0], "aborted ", "standbys []")
                left[1].wait_for("standbys []")
                for rank in left:
                    rank.wait_for(": 2 ranks")
            joiner = crew.add(2, "d")
            joiner.wait_for("met ")
            joiner.tell("ready")
            left[1].wait_for(": 3 ranks")
            _stop([*left, joiner])

    def test_a_survivor_is_lost(self) -> None:
        """The survivor that meets the standby is lost. The other goes on, and the node enters."""
        with Cluster() as cluster:
            crew = _Crew(cluster)
            left = crew.begin()
            joiner = crew.add(2, "b")
            joiner.wait_for("met ")
            crew.agents["agent0"].kill()
            joiner.wait_for("aborted ")
            left[1].wait_for(": 1 ranks")
            joiner.wait_for("rank 1 of 2, number 1, standbys []")
            left[1].wait_for(": 2 ranks")
            _stop([left[1], joiner])

    def test_all_survivors_are_lost(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(cluster)
            crew.begin()
            joiner = crew.add(2, "b")
            joiner.wait_for("met ")
            for node in (1, 0):
                crew.agents[f"agent{node}"].kill()
            joiner.wait_for("error JobFailed: ")
            self.assertEqual(joiner.process.wait(DEADLINE_S), 3)

    def test_the_scheduler_is_restarted(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(cluster, store=True)
            left = crew.begin()
            joiner = crew.add(2, "b")
            joiner.wait_for("met ")
            crew.restart_scheduler()
            left[0].goes_on()
            joiner.tell("ready")
            for rank in left:
                rank.wait_for(": 3 ranks")
            _stop([*left, joiner])


if __name__ == "__main__":
    unittest.main()
