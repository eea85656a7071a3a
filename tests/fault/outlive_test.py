# SPDX-License-Identifier: Apache-2.0
"""Tests ranks that outlive their agent, with real daemons. Agents are killed and started again.

Each rank keeps its process. The others end the step that the rank was in, and it goes on with their
state (docs/elastic.md).
"""

from __future__ import annotations

import random
import time
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from catching_up import require_no_open_round
from cluster import DEADLINE_S, Cluster, Daemon, Rank

_SAMPLES = 96


class _Trainee:
    """A rank that runs train_on.py, and its lines."""

    def __init__(self, crew: Any, agent: Daemon, arguments: Sequence[str]) -> None:
        self._crew = crew
        self.rank: Rank = crew.cluster.rank(agent, "train_on.py", [str(crew.directory), *arguments])
        self.pid = self.rank.process.pid

    def lines(self) -> list[str]:
        path = self._crew.directory / str(self.pid)
        text = path.read_text() if path.exists() else ""
        return [line.rstrip("\n") for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def wait_for(self, what: str, found: Callable[[list[str]], bool]) -> list[str]:
        end = time.monotonic() + DEADLINE_S
        while True:
            lines = self.lines()
            if found(lines):
                return lines
            if self.rank.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{what}: {lines[-20:]}, {list(self.rank.lines.queue)}")
            time.sleep(0.01)

    def steps(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines() if line.startswith("step ")]

    def goes_on(self, count: int = 10) -> None:
        """Returns when it has ended `count` more steps."""
        begin = len(self.steps())
        self.wait_for("no steps", lambda _: len(self.steps()) >= begin + count)

    def begins(self, count: int) -> str:
        """Returns the line of its `count`th beginning."""

        def all_of(lines: list[str]) -> list[str]:
            return [line for line in lines if line.startswith("begins ")]

        lines = self.wait_for(f"begin {count}", lambda lines: len(all_of(lines)) >= count)
        return all_of(lines)[count - 1]

    def end(self) -> str:
        """Returns its last line."""
        self.rank.process.wait(DEADLINE_S)
        return self.lines()[-1]

    def mapped(self) -> int:
        """Returns how many bytes of memory shared with agents it has mapped."""
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        ranges = [line.split()[0].split("-") for line in maps if "/memfd:" in line]
        return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)

    def taken(self) -> Counter[tuple[int, int]]:
        """Returns the samples, with their epochs, of the steps that it has ended."""
        taken: Counter[tuple[int, int]] = Counter()
        batch: list[tuple[int, int]] = []
        for line in self.lines():
            if line.startswith("takes "):
                _, epoch, *rest = line.split(" ")
                batch = [(int(epoch), int(each)) for each in "".join(rest).split(",") if each]
            elif line.startswith("step "):
                taken.update(batch)
                batch = []
        return taken


class _Crew:
    """A job of one rank on each node."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: int,
        arguments: Sequence[str] = (),
        agent_options: Sequence[str] = (),
        scheduler_options: Sequence[str] = (),
    ) -> None:
        self.cluster = cluster
        self.directory = cluster.directory / "said"
        self.directory.mkdir()
        self._arguments = arguments
        self._agent_options = agent_options
        self._nodes = nodes
        scheduler = cluster.scheduler(["--in_memory", *scheduler_options])
        self._scheduler = scheduler.addresses["listen"]
        cluster.aggregator(self._scheduler, "a0")
        self.agents = [self.agent(node) for node in range(nodes)]
        self.trainees = [_Trainee(self, agent, arguments) for agent in self.agents]
        for trainee in self.trainees:
            trainee.goes_on()

    def agent(self, node: int) -> Daemon:
        """Starts the agent of a node, at the same socket each time."""
        options = [
            f"--scheduler={self._scheduler}",
            f"--node_rank={node}",
            f"--name=node{node}",
            "--min_members=1",
            f"--max_members={self._nodes}",
            "--loss_policy=continue",
            *self._agent_options,
        ]
        return self.cluster.agent(node, options)

    def kill_agent(self, node: int) -> None:
        self.agents[node].kill()

    def start_agent(self, node: int) -> None:
        self.agents[node] = self.agent(node)

    def start_rank(self, node: int) -> None:
        self.trainees[node] = _Trainee(self, self.agents[node], self._arguments)

    def stop(self) -> list[str]:
        """Tells the ranks to end. Returns their last lines."""
        (self.directory / "stop").touch()
        return [trainee.end() for trainee in self.trainees]


class OutliveTest(unittest.TestCase):
    def _check_survivor(self, trainee: _Trainee) -> None:
        """Checks that the rank has begun once, and has ended each step once."""
        steps = trainee.steps()
        self.assertEqual(steps, list(range(1, steps[-1] + 1)))
        self.assertEqual(sum(line.startswith("begins") for line in trainee.lines()), 1)

    def _check_samples(self, *trainees: _Trainee) -> None:
        """Checks that each sample of each epoch was taken once, except for the last epoch."""
        taken = Counter[tuple[int, int]]()
        for trainee in trainees:
            taken.update(trainee.taken())
        self.assertLessEqual(max(taken.values()), 1)
        last = max(epoch for epoch, _ in taken)
        self.assertGreater(last, 0)
        for epoch in range(last):
            missing = [index for index in range(_SAMPLES) if (epoch, index) not in taken]
            # A lost rank may have ended its step without hearing of it.
            self.assertLessEqual(len(missing), 4 * len(trainees), f"epoch {epoch}: {missing}")

    def test_an_agent_that_comes_back(self) -> None:
        for victim in (1, 0):
            with self.subTest(victim=victim), Cluster() as cluster:
                crew = _Crew(cluster, nodes=2)
                lost, other = crew.trainees[victim], crew.trainees[1 - victim]
                mapped = lost.mapped()
                for count in (2, 3):  # The agent is killed twice.
                    crew.kill_agent(victim)
                    other.goes_on()
                    crew.start_agent(victim)
                    _, step, joined, rank, size = lost.begins(count).split()
                    self.assertEqual((joined, rank, size), ("True", str(victim), "2"))
                    self.assertGreater(int(step), lost.steps()[0])
                    lost.goes_on()
                    other.goes_on()
                require_no_open_round(self, crew.agents)
                # The memory of lost agents is gone, too.
                self.assertLess(lost.mapped(), 1.5 * mapped)
                ends = crew.stop()
                self.assertEqual(len(set(ends)), 1, ends)
                self.assertTrue(ends[0].startswith("weights "), ends)
                self._check_survivor(other)
                self._check_samples(lost, other)
                for trainee in (lost, other):
                    self.assertEqual(trainee.rank.process.returncode, 0)
                views = [line for line in other.lines() if line.startswith("view")]
                self.assertEqual(views, ["view 1", "view 2"] * 2)
                self.assertEqual(
                    [line for line in lost.lines() if line.startswith("view")], ["view 2"] * 2
                )

    def test_an_agent_that_is_killed_while_its_rank_comes_back(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(cluster, nodes=3)
            draw = random.Random(5)
            lost = crew.trainees[2]
            for _ in range(8):
                # The kill comes before the node has entered, while the state travels, or later.
                time.sleep(draw.uniform(0, 0.15))
                crew.kill_agent(2)
                crew.start_agent(2)
            for trainee in crew.trainees:
                trainee.goes_on()
            ends = crew.stop()
            self.assertEqual(len(set(ends)), 1, ends)
            for trainee in crew.trainees[:2]:
                self._check_survivor(trainee)
            self._check_samples(*crew.trainees)
            self.assertEqual(lost.rank.process.returncode, 0)

    def test_all_agents_are_killed_but_one(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(cluster, nodes=3)
            for node in (0, 1):
                crew.kill_agent(node)
            crew.trainees[2].goes_on()
            for node in (0, 1):
                crew.start_agent(node)
            for trainee in crew.trainees:
                trainee.wait_for("not all", lambda _: True)
                trainee.goes_on()
            ends = crew.stop()
            self.assertEqual(len(set(ends)), 1, ends)
            self._check_survivor(crew.trainees[2])
            self._check_samples(*crew.trainees)

    def test_the_source_is_lost_while_the_state_travels(self) -> None:
        for delay_s in (0, 0.01, 0.03):
            with self.subTest(delay_s=delay_s), Cluster() as cluster:
                crew = _Crew(cluster, nodes=3, arguments=["--ballast=24"])
                source, survivor, joiner = crew.trainees
                order = crew.directory / "order"
                order.write_text(f"{crew.agents[0].process.pid} {delay_s}")
                order.rename(crew.directory / f"kill.{source.pid}")
                crew.kill_agent(2)
                survivor.goes_on(3)
                crew.start_agent(2)
                crew.agents[0].process.wait(DEADLINE_S)  # It was killed while it gave its state.
                joiner.begins(2)
                crew.start_agent(0)
                source.begins(2)
                for trainee in crew.trainees:
                    trainee.goes_on(3)
                ends = crew.stop()
                self.assertEqual(len(set(ends)), 1, ends)
                self._check_survivor(survivor)
                self._check_samples(*crew.trainees)

    def test_an_agent_that_hangs(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(
                cluster,
                2,
                agent_options=["--silence_ms=6000"],
                scheduler_options=["--lease_ms=2000"],
            )
            lost, other = crew.trainees
            agent = crew.agents[0]
            cluster.stop(agent.process)
            other.goes_on()  # The other rank goes on when the lease is over.
            agent.kill()
            crew.start_agent(0)
            lost.begins(2)
            ends = crew.stop()
            self.assertEqual(len(set(ends)), 1, ends)
            self._check_survivor(other)
            self._check_samples(lost, other)

    def test_an_agent_that_never_comes_back(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(cluster, nodes=2, arguments=["--agent-wait=0.5"])
            crew.kill_agent(1)
            self.assertRegex(
                crew.trainees[1].end(),
                r"error AgentLost: no agent has taken this rank in again within 0.5 s .agent_wait_s, "
                r"or TALWEG_AGENT_WAIT_S.: no agent is listening on '.*agent1.sock'",
            )
            self.assertEqual(crew.trainees[1].rank.process.returncode, 3)
            crew.trainees[0].goes_on()
            self.assertRegex(crew.stop()[0], "weights ")
            self._check_survivor(crew.trainees[0])

    def test_a_rank_that_dies_alone(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(cluster, nodes=2)
            first, other = crew.trainees[1], crew.trainees[0]
            first.rank.process.kill()
            crew.agents[1].process.wait(DEADLINE_S)  # The agent ends, because it has no ranks.
            other.goes_on()
            crew.start_agent(1)
            crew.start_rank(1)
            crew.trainees[1].begins(1)
            crew.trainees[1].goes_on()
            ends = crew.stop()
            self.assertEqual(len(set(ends)), 1, ends)
            self._check_survivor(other)
            self._check_samples(first, *crew.trainees)

    def test_all_agents_are_killed(self) -> None:
        for saves in (True, False):
            with self.subTest(saves=saves), Cluster() as cluster:
                crew = _Crew(cluster, nodes=2, arguments=["--save"] * saves)
                for node in range(2):
                    crew.kill_agent(node)
                for node in range(2):
                    crew.start_agent(node)
                if not saves:
                    for trainee in crew.trainees:
                        self.assertIn("its job has begun anew", trainee.end())
                    continue
                begins = {trainee.begins(2) for trainee in crew.trainees}
                # Both begin at a step that both had ended.
                [step] = {int(line.split()[1]) for line in begins}
                self.assertGreaterEqual(step, 10)
                for trainee in crew.trainees:
                    trainee.goes_on()
                ends = crew.stop()
                self.assertEqual(len(set(ends)), 1, ends)

    def test_all_agents_are_killed_and_a_rank(self) -> None:
        with Cluster() as cluster:
            crew = _Crew(cluster, nodes=2, arguments=["--save"])
            for node in range(2):
                crew.kill_agent(node)
            crew.trainees[0].rank.process.kill()
            for node in range(2):
                crew.start_agent(node)
            crew.start_rank(0)
            # The rank has the lowest number, but new weights. So the other rank's weights count.
            steps = {int(crew.trainees[0].begins(1).split()[1])}
            steps.add(int(crew.trainees[1].begins(2).split()[1]))
            self.assertEqual(len(steps), 1, steps)
            self.assertGreaterEqual(min(steps), 10)
            ends = crew.stop()
            self.assertEqual(len(set(ends)), 1, ends)

    def test_the_only_agent_is_killed(self) -> None:
        for ranks in (1, 2):
            with self.subTest(ranks=ranks), Cluster() as cluster:
                directory = cluster.directory / "said"
                directory.mkdir()
                options = ["--standalone", f"--rank_count={ranks}"]
                agent = cluster.agent(0, options)
                crew = SimpleNamespace(cluster=cluster, directory=directory)
                trainees = [_Trainee(crew, agent, ["--save"]) for _ in range(ranks)]
                for count in (2, 3):
                    for trainee in trainees:
                        trainee.goes_on()
                    agent.kill()
                    agent = cluster.agent(0, options)
                    steps = {int(each.begins(count).split()[1]) for each in trainees}
                    self.assertEqual(len(steps), 1, steps)
                    self.assertGreater(min(steps), 0)
                for trainee in trainees:
                    trainee.goes_on()
                (directory / "stop").touch()
                ends = {trainee.end() for trainee in trainees}
                self.assertEqual(len(ends), 1, ends)


if __name__ == "__main__":
    unittest.main()
