# SPDX-License-Identifier: Apache-2.0
"""Two nodes that train, and others that join: programs/catch_up.py."""

from __future__ import annotations

import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, Cluster, Daemon, Rank

# A virtual machine's CPU may stand still for 20 s. That is no loss here.
_SILENCE = "--silence_ms=60s"


class Job:
    """Its ranks are in the order in which they were added."""

    def __init__(
        self,
        cluster: Cluster,
        options: Sequence[str] = (),
        mortal: dict[int, str] | None = None,
        program: str = "catch_up.py",
    ) -> None:
        """`mortal`: in which phase the rank of a node dies."""
        self._program = program
        self._cluster = cluster
        self._options = list(options)
        scheduler = cluster.scheduler(["--in_memory", "--lease_ms=60s"])
        self._address = scheduler.addresses["listen"]
        cluster.aggregator(self._address, "a0", [_SILENCE])
        self.stop = cluster.directory / "stop"
        self.agents: list[Daemon] = []
        self.ranks: list[Rank] = []
        for node in range(2):
            dies_in = (mortal or {}).get(node)
            self.add(node, [f"--dies-in={dies_in}"] if dies_in else [])
            self.ranks[0].wait_for(f"of {node + 1} ranks")
        for rank in self.ranks:
            rank.wait_for("of 2 ranks")

    def add(self, node: int, options: Sequence[str] = (), count: int = 1) -> Rank:
        """Starts a node with so many ranks; its first one."""
        agent = self._cluster.agent(
            node,
            [
                f"--scheduler={self._address}",
                f"--node_rank={node}",
                f"--rank_count={count}",
                f"--name=node{node}",
                "--min_members=1",
                "--max_members=4",
                "--gather_ms=1",
                "--loss_policy=continue",
                _SILENCE,
            ],
            name=f"agent{len(self.agents)}",
        )
        arguments = [str(self.stop), *self._options, *options]
        self.agents.append(agent)
        first = len(self.ranks)
        for _ in range(count):
            self.ranks.append(self._cluster.rank(agent, self._program, arguments))
        return self.ranks[first]

    def end(self, test: unittest.TestCase, places: Sequence[int]) -> None:
        """All of these have equal weights."""
        self.stop.touch()
        ends = [self.ranks[place].wait_for("weights ") for place in places]
        test.assertEqual(len(set(ends)), 1, ends)
        for place in places:
            test.assertEqual(self.ranks[place].process.wait(DEADLINE_S), 0)


def beside(rank: Rank, node: int) -> int:
    """How many steps the rank has ended since it gave its state, while the node was a standby."""
    given = max((at for at, line in enumerate(rank.seen) if line == "gives"), default=0)
    return sum(f" beside {node}" in line for line in rank.seen[given:])
