# SPDX-License-Identifier: Apache-2.0
"""Kills the agents of programs that use outliver.py, during each way of training."""

from __future__ import annotations

import os
import signal
import unittest
from collections.abc import Sequence
from pathlib import Path

from outliving import Run
from torch_forks import TorchForks


def _mapped(pid: int) -> int:
    """Returns how many bytes of memory shared with agents the process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if "/memfd:" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


class _Ways:
    """A job whose program trains in several ways."""

    def __init__(
        self,
        test: unittest.TestCase,
        program: str,
        ways: Sequence[str],
        on_one_node: bool,
        forks: TorchForks | None,
    ) -> None:
        self._test = test
        self._ways = ways
        self._on_one_node = on_one_node
        options, arguments = ["--nodes=2", "--loss-policy=continue"], [program, *ways]
        if on_one_node:  # Only the ranks themselves have the state.
            options, arguments = ["--ranks-per-node=2"], [program, "--save", *ways]
        self.run = Run(test, arguments, options, 4 * len(ways), forks)
        self._killed: dict[int, int] = {}

    def kill(self, node: int, in_step: bool) -> None:
        """Kills a node's agent, and returns when both ranks have gone on with the next one."""
        node = 0 if self._on_one_node else node
        before = self._killed.get(node, 0)
        self._killed[node] = self.run.kill_agent(node, 0, before, in_step)
        self.run.go_on(2)

    def kill_rank(self) -> None:
        """Kills a rank. Another process without any state takes its place."""
        victim = max(self.run.said())
        self.run.dead.add(victim)
        os.kill(victim, signal.SIGKILL)
        self.run.wait_for("no new rank", lambda said: len(said) == 2 + len(self.run.dead))
        self._killed.clear()
        self.run.go_on(2)

    def living(self) -> dict[int, list[str]]:
        """Returns the lines of ranks that were not killed."""
        return {pid: lines for pid, lines in self.run.said().items() if pid not in self.run.dead}

    def wait_for_memory(self, way: str, before: dict[int, int]) -> None:
        """Returns when no rank has much more memory mapped than `before`, by PID."""

        def is_let_go(said: dict[int, list[str]]) -> bool:
            living = said.keys() - self.run.dead
            return all(_mapped(pid) < 1.5 * before[pid] for pid in living & before.keys())

        self.run.wait_for(f"{way}: ranks keep the memory of a lost agent", is_let_go)

    def end(self, way: str) -> None:
        (self.run.directory / f"stop.{way}").touch()

        def has_ended(lines: list[str]) -> bool:
            return any(line.startswith(f"weights {way} ") for line in lines)

        self.run.wait_for(f"no end of {way}", lambda _: all(map(has_ended, self.living().values())))

    def check(self, way: str) -> None:
        """Checks that all have the same bits, and have ended each step once."""
        said = self.living()
        self._test.assertEqual(len(said), 2)
        ends = {
            line for lines in said.values() for line in lines if line.startswith(f"weights {way} ")
        }
        self._test.assertEqual(len(ends), 1, f"{way}: {ends}")
        if self._on_one_node:
            return  # Here all go back to a step that all have ended.
        ended: set[int] = set()
        for lines in self.run.said().values():
            words = [line.split() for line in lines if line.startswith("step ")]
            steps = [int(number) for _, number, of in words if of == way]
            self._test.assertEqual(steps, sorted(set(steps)), f"{way}: a step was done twice")
            ended |= set(steps)
        self._test.assertEqual(ended, set(range(1, max(ended) + 1)), f"{way}: a step is lost")


def live(
    test: unittest.TestCase,
    program: str,
    ways: Sequence[str],
    on_one_node: bool = False,
    lets_go: bool = True,
    forks: TorchForks | None = None,
) -> None:
    """Kills agents during each way: one node's twice and then the other's, or the only one. During
    the first way it kills a rank, too.

    With `lets_go` ranks keep no memory that they shared with lost agents.
    """
    job = _Ways(test, program, ways, on_one_node, forks)
    for way in ways:
        job.run.go_on(2)
        job.kill(1, in_step=True)
        mapped = {pid: _mapped(pid) for pid in job.living()}
        job.kill(1, in_step=False)
        job.kill(0, in_step=True)
        if way == ways[0] and not on_one_node:
            job.kill_rank()
        if lets_go:
            # A framework's own thread may free the last of it some steps later.
            job.wait_for_memory(way, mapped)
        job.end(way)
    job.run.stop()
    for way in ways:
        job.check(way)
