# SPDX-License-Identifier: Apache-2.0
"""Runs programs/catch_up.py on two nodes that train, and on others that join."""

from __future__ import annotations

import json
import subprocess
import time
import unittest
from collections.abc import Sequence
from typing import Any

from cluster import DEADLINE_S, TOOL, Cluster, Daemon, Rank

# A virtual machine's CPU may stand still for 20 s, which must not count as a loss here.
_SILENCE = "--silence_ms=60s"


class Job:
    """A job. Its ranks are in the order in which they were added."""

    def __init__(
        self,
        cluster: Cluster,
        options: Sequence[str] = (),
        mortal: dict[int, str] | None = None,
        program: str = "catch_up.py",
        begin_together: bool = False,
    ) -> None:
        """`mortal` says in which phase a node's rank dies. With `begin_together` node 1 is
        no joiner.
        """
        self._beginning = ["--gather_ms=1"]
        if begin_together:
            self._beginning = ["--begin_members=2", f"--gather_ms={int(DEADLINE_S)}s"]
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
            if not begin_together:
                self.ranks[0].wait_for(f"of {node + 1} ranks")
        for rank in self.ranks:
            rank.wait_for("of 2 ranks")

    def add(self, node: int, options: Sequence[str] = (), count: int = 1) -> Rank:
        """Starts a node with `count` ranks. Returns the first rank."""
        agent = self._cluster.agent(
            node,
            [
                f"--scheduler={self._address}",
                f"--node_rank={node}",
                f"--rank_count={count}",
                f"--name=node{node}",
                "--min_members=1",
                "--max_members=4",
                *self._beginning,
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

    def text(self) -> str:
        """Returns the scheduler's text about the job."""
        line = [str(TOOL), "status", f"--scheduler={self._address}"]
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
        return done.stdout

    def end(self, test: unittest.TestCase, places: Sequence[int]) -> None:
        """Ends the job, and checks that these ranks have equal weights."""
        self.stop.touch()
        ends = [self.ranks[place].wait_for("weights ") for place in places]
        test.assertEqual(len(set(ends)), 1, ends)
        for place in places:
            test.assertEqual(self.ranks[place].process.wait(DEADLINE_S), 0)


def open_catch_ups(agents: Sequence[Daemon], names: str = "talweg.catch_up.") -> list[Any]:
    """Returns the open rounds at these agents by which standbys take over state, or of `names`."""
    found = []
    for agent in agents:
        line = [str(TOOL), "status", f"--agent={agent.addresses['admin']}", "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
        rounds = json.loads(done.stdout)["open_rounds"]
        found += [each for each in rounds if names in each["tensor"]]
    return found


def require_no_open_round(
    test: unittest.TestCase, agents: Sequence[Daemon], names: str = "talweg.catch_up."
) -> None:
    """Returns when no agent that lives has an open round by which a standby takes over state, or
    one of `names`.
    """
    there = [agent for agent in agents if agent.process.poll() is None]
    end = time.monotonic() + DEADLINE_S
    while (left := open_catch_ups(there, names)) and time.monotonic() < end:
        time.sleep(0.1)
    test.assertEqual(left, [])


def beside(rank: Rank, node: int) -> int:
    """Returns how many steps the rank has ended since it gave its state to the standby."""
    given = max((at for at, line in enumerate(rank.seen) if line == "gives"), default=0)
    return sum(f" beside {node}" in line for line in rank.seen[given:])
