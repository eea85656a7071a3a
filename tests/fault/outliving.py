# SPDX-License-Identifier: Apache-2.0
"""A `talweg run` whose agents tests kill, and whose ranks outlive them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path

import rank_logs
from cluster import DEADLINE_S
from talweg_run import TalwegRun
from torch_forks import TorchForks


class Run(TalwegRun):
    """A `talweg run` of a program that makes steps until DIRECTORY/stop exists."""

    def __init__(
        self,
        test: unittest.TestCase,
        program: Sequence[str],
        options: Sequence[str],
        restarts: int = 3,
        forks: TorchForks | None = None,
    ) -> None:
        super().__init__(test, program, [*options, f"--restarts={restarts}"], forks)
        self.dead: set[int] = set()  # Processes of ranks that the test has killed.
        self._has_nodes = any(option.startswith("--nodes=") for option in options)

    def agent(self, node: int, not_pid: int = 0) -> int:
        """Returns the PID of a node's agent, when it is there."""
        # The agent of a single node has no such option.
        number = [f"--node_rank={node}"] if self._has_nodes else []
        return self.daemon("talweg-agent", *number, not_pid=not_pid)

    def said(self) -> dict[int, list[str]]:
        return rank_logs.said(self.directory)

    def wait_for(self, what: str, found: Callable[[dict[int, list[str]]], bool]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not found(self.said()):
            if self.process.poll() is not None or time.monotonic() > end:
                self.fail(what)
            time.sleep(0.01)

    def go_on(self, ranks: int) -> None:
        """Returns when so many processes have ended ten more steps."""
        gone_on = rank_logs.going_on(self.directory, ranks)
        self.wait_for("no steps", lambda _: gone_on())

    def begun(self, pid: int) -> int:
        """Returns how often the process has begun."""
        return sum(line.startswith("begins") for line in self.said()[pid])

    def begins(self, pid: int, count: int) -> None:
        self.wait_for(
            f"{pid} does not begin {count} times",
            lambda said: sum(line.startswith("begins") for line in said[pid]) >= count,
        )

    def kill_agent(
        self, node: int, count: int = 0, not_pid: int = 0, in_backward: bool = False
    ) -> int:
        """Kills a node's agent, and returns its PID when its ranks have begun for the `count`th
        time.

        With 0 they must begin once more. With `in_backward` one of the ranks kills the agent, if
        the program can.
        """
        killed = self.agent(node, not_pid)
        try:
            living = set(self.said()) - self.dead
            served = {pid: count for pid in living if self._agent_of(pid) == killed}
        except FileNotFoundError:
            self.fail("a rank has ended")
        assert served
        if count == 0:
            served = {pid: self.begun(pid) + 1 for pid in served}
        if in_backward:
            order = self.directory / "order"
            order.write_text(str(killed))
            order.rename(self.directory / f"kill.{next(iter(served))}")
        else:
            os.kill(killed, signal.SIGKILL)
        for pid, begun in served.items():
            self.begins(pid, begun)
        return killed

    def _agent_of(self, rank: int) -> int:
        """Returns the agent of a rank. The rank's environment has the path of its socket."""
        rank = self.forks.starter_of(rank) if self.forks else rank
        variables = Path(f"/proc/{rank}/environ").read_bytes().decode().split("\0")
        [path] = [each.partition("=")[2] for each in variables if each.startswith("TALWEG_AGENT_S")]
        parent = Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
                if f"--socket_path={path}" in line:
                    return int(child)
        return 0
