# SPDX-License-Identifier: Apache-2.0
"""Tests a job that goes on when members die (loss_policy=continue): who has a part in a result.

It has three nodes with one rank each. The ranks print for every round what each rank has
contributed (programs/roll_call.py). The test stops and kills processes at certain points of a
round.
"""

from __future__ import annotations

import json
import subprocess
import time
import unittest
from collections.abc import Callable, Sequence
from typing import Any

from cluster import DEADLINE_S, TOOL, Cluster, Daemon, Rank

_TENSORS = ("small", "mean", "large")
# A block of the large tensor. The tensor is cut into many slices and goes to every aggregator.
_ELEMENTS = 200_000
# If a process is stopped, neither its credit nor a socket's buffer can hold the rest of such one.
_MANY_ELEMENTS = 1_500_000
# Streams end at once. After a restart of the scheduler only the lease tells of a loss.
_LEASE_MS = 2000


class Crew:
    """The processes of one job of three nodes."""

    def __init__(
        self,
        cluster: Cluster,
        min_members: int = 1,
        aggregators: int = 2,
        store: bool = False,
        agent_options: Sequence[str] = (),
        elements: int = _ELEMENTS,
    ) -> None:
        self.cluster = cluster
        self._elements = elements
        path = cluster.directory / "store.sqlite"
        self._scheduler_options = [
            f"--store_path={path}" if store else "--in_memory",
            f"--lease_ms={_LEASE_MS}",
        ]
        self.scheduler = cluster.scheduler(self._scheduler_options)
        self.address = self.scheduler.addresses["listen"]
        self.aggregators = [cluster.aggregator(self.address, f"a{i}") for i in range(aggregators)]
        self._agent_options = [
            f"--scheduler={self.address}",
            f"--min_members={min_members}",
            "--max_members=3",
            "--loss_policy=continue",
            *agent_options,
        ]
        self.agents: list[Daemon] = []
        self.ranks: list[Rank] = []
        self.since: list[int] = []

    def add(self, node: int, since: int = 1) -> None:
        """Starts the agent of `node`, perhaps again. Its rank enters at round `since`."""
        name = f"agent{node}.{len(self.agents)}"
        options = [*self._agent_options, f"--node_rank={node}", f"--name=node{node}"]
        agent = self.cluster.agent(node, options, name=name)
        rank = self.cluster.rank(agent, "roll_call.py", [str(node), "3", str(self._elements)])
        self.agents[node : node + 1] = [agent]
        self.ranks[node : node + 1] = [rank]
        self.since[node : node + 1] = [since]

    def begin(self) -> None:
        for rank in self.ranks:
            rank.wait_for(" is rank ")
            assert rank.process.poll() is None
        self.tell("begin", "run 3")

    def tell(self, *lines: str, ranks: Sequence[int] = (0, 1, 2)) -> None:
        """Has ranks carry out commands. Returns when all have."""
        for line in lines:
            for rank in ranks:
                self.ranks[rank].tell(line)
            for rank in ranks:
                self.ranks[rank].wait_for(f"done: {line}")

    def glance(self, rank: int) -> None:
        """Returns when the rank has copied a part of the large result, and waits for the rest."""
        end = time.monotonic() + DEADLINE_S
        share = 0.0
        while share < 0.25:
            assert time.monotonic() < end, share
            self.ranks[rank].tell("glance")
            share = float(self.ranks[rank].wait_for("glanced: ").rpartition(" ")[2])
        assert share < 1.0, share

    def sum_of(self, name: str, number: int, members: set[int]) -> list[float]:
        """Returns the blocks of a result to which exactly `members` have contributed."""
        divisor = len(members) if name == "mean" else 1
        return [
            0.0
            if place not in members
            # A joiner does not know the number of its first round.
            else (-1.0 if self.since[place] == number > 1 else number) / divisor
            for place in range(3)
        ]

    def restart_scheduler(self) -> None:
        options = [f"--listen={self.address}", *self._scheduler_options]
        self.scheduler = self.cluster.start("scheduler", "scheduler.again", options)

    def status(self, node: int) -> dict[str, Any]:
        """Returns the status of the agent of `node`."""
        address = self.agents[node].addresses["admin"]
        done = subprocess.run(
            [str(TOOL), "status", f"--agent={address}", "--json"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def job_text(self) -> str:
        """Returns the scheduler's text about what the job waits for."""
        done = subprocess.run(
            [str(TOOL), "status", f"--scheduler={self.address}"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        return done.stdout

    def wait_until(self, node: int, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE_S
        while True:
            status = self.status(node)
            if what(status):
                return status
            assert time.monotonic() < end, status

    def wait_for_members(self, node: int, count: int) -> None:
        """Returns when the agent of `node` works in a view of so many members."""
        self.wait_until(
            node,
            lambda status: status["state"] == "active" and len(status["view"]["members"]) == count,
        )


def _all_received(status: dict[str, Any]) -> bool:
    """Whether the owners have all contributions of this node to its open rounds."""
    rounds = status["open_rounds"]
    return (
        len(rounds) == len(_TENSORS)
        and all(each["slices_sent"] == each["slice_count"] for each in rounds)
        and all(int(each["bytes_in_flight"]) == 0 for each in status["aggregators"])
    )


def _waits_for_one_owner(status: dict[str, Any]) -> bool:
    """Whether one aggregator has taken all its slices, and the other has used up the credit."""
    in_flight = [int(each["bytes_in_flight"]) for each in status["aggregators"]]
    rounds = [each["tensor"] for each in status["open_rounds"]]
    return "large" in rounds and min(in_flight) == 0 and max(in_flight) > 0


def _crew(cluster: Cluster, **options: Any) -> Crew:
    crew = Crew(cluster, **options)
    for node in range(3):
        crew.add(node)
    crew.begin()
    return crew


class SurvivorsTest(unittest.TestCase):
    def _results(self, rank: Rank) -> dict[tuple[str, int], list[float]]:
        """Returns a rank's results, by tensor and round."""
        found: dict[tuple[str, int], list[float]] = {}
        for line in rank.seen:
            self.assertNotIn("TORN", line)
            name, _, rest = line.partition(" round ")
            if name not in _TENSORS:
                continue
            number, _, blocks = rest.partition(": ")
            self.assertNotIn((name, int(number)), found)
            found[(name, int(number))] = [float(block) for block in blocks.split()]
        return found

    def _check(self, crew: Crew, changes: dict[int, set[int]], open_round: int = 0) -> None:
        """Checks that all members have one result of each round, with the members in `changes`.

        `changes` has the members from each of its rounds on. Its last round has no members. In
        `open_round` small tensors may have all three members, at all ranks alike.
        """
        members = {0, 1, 2}
        number = 1
        while members := changes.get(number, members):
            for name in _TENSORS:
                allowed = [members]
                if number == open_round and name != "large":
                    allowed.append({0, 1, 2})
                result = self._result(crew, name, number, members)
                self.assertIn(result, [crew.sum_of(name, number, who) for who in allowed])
            number += 1

    def _result(self, crew: Crew, name: str, number: int, members: set[int]) -> list[float] | None:
        """Returns the result of a round, which all members that were there must have alike."""
        there = [place for place in sorted(members) if number >= crew.since[place]]
        results = [self._results(crew.ranks[place]).get((name, number)) for place in there]
        self.assertEqual(results, results[:1] * len(results), f"{name} round {number}")
        return results[0]

    def _error(self, rank: Rank, kind: str, *texts: str) -> None:
        line = rank.wait_for("error ")
        self.assertIn(f"error {kind}:", line)
        for text in texts:
            self.assertIn(text, line)

    # ----- A node dies -----

    def test_between_rounds(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.agents[2].kill()
            crew.tell("run 8", ranks=(0, 1))
            self._check(crew, {4: {0, 1}, 9: set()})
            # The ranks of the dead node get an error.
            crew.ranks[2].tell("run 8")
            self._error(crew.ranks[2], "AgentLost")

    def test_before_it_contributes(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.tell("push", ranks=(0, 1))
            for node in (0, 1):
                crew.wait_until(node, _all_received)
            crew.agents[2].kill()
            crew.tell("take", "run 8", ranks=(0, 1))
            self._check(crew, {4: {0, 1}, 9: set()})

    def test_when_it_alone_has_contributed(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.tell("push", ranks=[2])
            crew.wait_until(2, _all_received)
            crew.agents[2].kill()
            crew.tell("push", "take", "run 8", ranks=(0, 1))
            self._check(crew, {4: {0, 1}, 9: set()})

    def test_while_contributing(self) -> None:
        """One aggregator has served its part, the other has not taken all. All is summed again."""
        with Cluster() as cluster:
            crew = _crew(cluster, elements=_MANY_ELEMENTS)
            crew.cluster.stop(crew.aggregators[1].process)
            crew.tell("push")
            crew.wait_until(2, _waits_for_one_owner)
            # Parts of the sum of three members must not remain in the sum of two.
            for node in (0, 1):
                crew.glance(node)
            crew.agents[2].kill()
            crew.cluster.resume(crew.aggregators[1].process)
            crew.tell("take", "run 8", ranks=(0, 1))
            self._check(crew, {4: {0, 1}, 9: set()}, open_round=4)

    def test_while_contributing_with_an_aggregator(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster, elements=_MANY_ELEMENTS)
            crew.cluster.stop(crew.aggregators[1].process)
            crew.tell("push")
            crew.wait_until(2, _waits_for_one_owner)
            crew.glance(0)
            crew.agents[2].kill()
            crew.aggregators[1].kill()
            crew.tell("take", "run 8", ranks=(0, 1))
            self._check(crew, {4: {0, 1}, 9: set()}, open_round=4)

    def test_when_some_have_the_result(self) -> None:
        """If some have the result, it counts for all. The others get missing parts from them."""
        with Cluster() as cluster:
            crew = _crew(cluster, agent_options=["--nolocal_transport"], elements=_MANY_ELEMENTS)
            crew.tell("push", ranks=(1, 2))
            for node in (1, 2):
                crew.wait_until(node, _all_received)
            crew.cluster.stop(crew.agents[1].process)
            crew.tell("push", ranks=[0])
            crew.tell("take", ranks=(0, 2))
            crew.agents[2].kill()
            # The aggregator still has the bytes that the stopped agent's sockets could not take.
            crew.aggregators[1].kill()
            crew.cluster.resume(crew.agents[1].process)
            crew.tell("take", ranks=[1])
            counters = {name: int(n) for name, n in crew.status(1)["counters"].items()}
            self.assertGreater(counters["finishes"], 0)
            self.assertGreater(counters["transport_frame_bytes_sent"], 0)
            crew.tell("run 8", ranks=(0, 1))
            self._check(crew, {5: {0, 1}, 9: set()})

    def test_a_rank(self) -> None:
        """A node's ranks cannot go on without one of them. Other nodes can."""
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.tell("push", ranks=(0, 1))
            crew.ranks[2].process.kill()
            crew.tell("take", "run 8", ranks=(0, 1))
            self._check(crew, {4: {0, 1}, 9: set()})

    def test_one_that_leaves(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.ranks[2].tell("leave")
            crew.ranks[2].wait_for("left")
            crew.tell("run 8", ranks=(0, 1))
            self._check(crew, {4: {0, 1}, 9: set()})

    def test_too_many(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster, min_members=2)
            crew.agents[2].kill()
            crew.tell("run 6", ranks=(0, 1))
            self._check(crew, {4: {0, 1}, 7: set()})
            crew.agents[1].kill()
            crew.ranks[0].tell("run 8")
            self._error(crew.ranks[0], "JobFailed", "node 1", "needs at least 2")

    def test_what_needs_the_one_that_died(self) -> None:
        """Ranks keep their numbers, so a broadcast or a gather means the same rank as before."""
        with Cluster() as cluster:
            crew = Crew(cluster, min_members=2, aggregators=0)
            for node in range(3):
                crew.add(node)
            for agent in crew.agents:
                crew.cluster.wait_for_log(agent, "joined job")
            # The job has waited for this aggregator. Its first view has all three nodes.
            cluster.aggregator(crew.address, "a0")
            for node, rank in enumerate(crew.ranks):
                rank.wait_for(f"place {node} is rank {node} of 3")
            crew.tell("begin", "run 2", "gather")
            crew.agents[0].kill()
            for node in (1, 2):
                crew.wait_for_members(node, 2)
            crew.tell("broadcast 2", "broadcast 1", ranks=(1, 2))
            for node in (1, 2):
                self.assertIn("broadcast from 1: 1", crew.ranks[node].seen)
                self.assertIn("broadcast from 2: 2", crew.ranks[node].seen)
                crew.ranks[node].tell("broadcast 0")
                self._error(crew.ranks[node], "Aborted", "from 0", "of node 0", "is gone")
                crew.ranks[node].tell("gather")
            for node in (1, 2):
                self._error(crew.ranks[node], "Aborted", "'places': rank 0 is gone", "end_step()")
            crew.tell("run 5", ranks=(1, 2))
            self._check(crew, {3: {1, 2}, 6: set()})

    def test_ranks_follow_a_view(self) -> None:
        """By talweg_follow() ranks take a view's numbers, and their declarations use these."""
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.agents[0].kill()
            for node in (1, 2):
                crew.wait_for_members(node, 2)
            for node in (1, 2):
                crew.ranks[node].tell("follow 0")
            for node in (1, 2):
                # The root that they name is the first of the ranks that are left.
                told = crew.ranks[node].wait_for("follows")
                self.assertEqual(told, f"follows as {node - 1} of 2, root is 1")
            # Tensors that were declared before go on.
            crew.tell("push", "take", ranks=(1, 2))
            self._check(crew, {4: {1, 2}, 5: set()})
            crew.ranks[1].tell("follow 987654")
            self._error(crew.ranks[1], "InvalidArgument", "987654", "not one of the last")

    # ----- Other processes die -----

    def test_an_aggregator(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster, elements=_MANY_ELEMENTS)
            crew.cluster.stop(crew.aggregators[1].process)
            crew.tell("push")
            crew.wait_until(2, _waits_for_one_owner)
            crew.aggregators[1].kill()
            crew.tell("take", "run 6")
            # Another aggregator of this name is in the next view, and goes on alone when it must.
            cluster.aggregator(crew.address, "a1")
            crew.agents[2].kill()
            crew.wait_for_members(0, 2)
            self.assertEqual(len(crew.status(0)["view"]["aggregators"]), 2)
            crew.aggregators[0].kill()
            crew.tell("run 9", ranks=(0, 1))
            self._check(crew, {7: {0, 1}, 10: set()})

    def test_the_last_aggregator(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.aggregators[0].kill()
            crew.tell("run 6")
            crew.aggregators[1].kill()
            for rank in crew.ranks:
                rank.tell("run 8")
                self._error(rank, "JobFailed", "a1", "no aggregator is left")
            self._check(crew, {7: set()})

    def test_the_scheduler_with_a_node(self) -> None:
        """The others go on when the scheduler is back with its store, and misses the node."""
        with Cluster() as cluster:
            crew = _crew(cluster, store=True)
            crew.scheduler.kill()
            crew.tell("run 6")
            crew.agents[2].kill()
            crew.tell("push", ranks=(0, 1))
            crew.restart_scheduler()
            crew.tell("take", "run 9", ranks=(0, 1))
            self._check(crew, {7: {0, 1}, 10: set()})

    # ----- A node comes -----

    def test_another_one_joins(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.agents[2].kill()
            crew.tell("run 6", ranks=(0, 1))
            crew.add(2)
            crew.tell("until 3", ranks=(0, 1))
            crew.wait_for_members(0, 3)
            crew.tell("more 3")
            self._check_joined(crew)

    def test_one_that_joins_as_node_0(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.agents[0].kill()
            crew.tell("run 6", ranks=(1, 2))
            crew.add(0)
            crew.tell("until 3", ranks=(1, 2))
            crew.tell("more 3")
            self._check_joined(crew, joiner=0)

    def test_nobody_enters_a_program_that_ends_no_steps(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.agents[2].kill()
            crew.tell("push", "take", ranks=(0, 1))
            crew.wait_for_members(0, 2)
            crew.add(2)
            text = ""
            end = time.monotonic() + DEADLINE_S
            while "talweg.end_step()" not in text:
                assert time.monotonic() < end, text
                text = crew.job_text()
            self.assertIn("waits for nodes 0, 1 to end step", text)
            crew.tell("push", "take", "push", "take", ranks=(0, 1))
            self.assertEqual(len(crew.status(0)["view"]["members"]), 2)

    def test_another_one_joins_while_rounds_go_on(self) -> None:
        with Cluster() as cluster:
            crew = _crew(cluster)
            crew.agents[2].kill()
            crew.tell("run 4", ranks=(0, 1))
            for rank in crew.ranks[:2]:
                rank.tell("until 3")
            crew.add(2)
            for rank in crew.ranks[:2]:
                rank.wait_for("done: until 3")
            crew.tell("more 12")
            self._check_joined(crew)

    def _check_joined(self, crew: Crew, joiner: int = 2) -> None:
        """Checks that every round is whole, and has the joiner from its first round on."""
        others = {0, 1, 2} - {joiner}
        seen = self._results(crew.ranks[joiner])
        firsts = {name: min(number for what, number in seen if what == name) for name in _TENSORS}
        self.assertEqual(len(set(firsts.values())), 1, firsts)
        crew.since[joiner] = firsts["small"]
        last = max(number for _, number in seen)
        self.assertGreater(last, crew.since[joiner])
        for name in _TENSORS:
            for number in range(4, last + 1):
                members = others if number < crew.since[joiner] else {0, 1, 2}
                wanted = crew.sum_of(name, number, members)
                self.assertEqual(self._result(crew, name, number, members), wanted)


if __name__ == "__main__":
    unittest.main()
