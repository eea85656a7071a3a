# SPDX-License-Identifier: Apache-2.0
"""`talweg run` whose agents are killed under ranks that outlive them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster import DEADLINE_S, PROGRAMS, TOOL


class Run:
    """A `talweg run` of one of the programs that end steps until DIRECTORY/stop is there."""

    def __init__(
        self, test: unittest.TestCase, program: Sequence[str], options: Sequence[str]
    ) -> None:
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        test.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        line = [sys.executable, "-P", str(PROGRAMS / program[0]), str(self.directory), *program[1:]]
        self.process = subprocess.Popen(
            [
                *[str(TOOL), "run", *options, "--restart-pause-ms=1", "--restarts=3"],
                *["--", *line],
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        test.addCleanup(self._end)

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=DEADLINE_S)

    def said(self) -> dict[int, list[str]]:
        """What each process of a rank has said."""
        return {
            int(path.name): path.read_text().splitlines()
            for path in self.directory.iterdir()
            if path.name.isdigit()
        }

    def wait_for(self, what: str, found: Callable[[dict[int, list[str]]], bool]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not found(self.said()):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.terminate()
                output, _ = self.process.communicate(timeout=DEADLINE_S)
                raise AssertionError(f"{what}: {output}")
            time.sleep(0.01)

    def go_on(self, ranks: int) -> None:
        """Returns when so many processes have ended ten steps more."""
        begin = {pid: len(lines) for pid, lines in self.said().items()}
        self.wait_for(
            "no steps",
            lambda said: (
                sum(
                    sum(line.startswith("step") for line in lines[begin.get(pid, 0) :]) >= 10
                    for pid, lines in said.items()
                )
                >= ranks
            ),
        )

    def begins(self, pid: int, count: int) -> None:
        self.wait_for(
            f"{pid} does not begin {count} times",
            lambda said: sum(line.startswith("begins") for line in said[pid]) >= count,
        )

    def agent(self, node: int, not_pid: int = 0) -> int:
        """The pid of a node's agent, when it is there."""
        end = time.monotonic() + DEADLINE_S
        while True:
            for pid in self._agents(node):
                if pid != not_pid:
                    return pid
            assert time.monotonic() < end, f"no agent of node {node}"
            time.sleep(0.01)

    def _agents(self, node: int) -> list[int]:
        found = []
        for supervisor in self._children(self.process.pid):
            for pid in self._children(supervisor):
                with contextlib.suppress(OSError):  # It has ended.
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                    if line[0].endswith("talweg-agent") and (
                        f"--node_rank={node}" in line or "--standalone" in line
                    ):
                        found.append(pid)
        return found

    def _children(self, pid: int) -> list[int]:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]

    def stop(self) -> str:
        """Has the ranks end well; returns the output."""
        (self.directory / "stop").touch()
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, output
        return output

    def kill_agent(self, node: int, count: int, not_pid: int = 0, in_backward: bool = False) -> int:
        """Kills a node's agent, whose ranks begin for the `count`th time then; returns its pid.

        `in_backward`: one of its ranks does, where the program can.
        """
        killed = self.agent(node, not_pid)
        served = [pid for pid in self.said() if self._agent_of(pid) == killed]
        assert served
        if in_backward:
            order = self.directory / "order"
            order.write_text(str(killed))
            order.rename(self.directory / f"kill.{served[0]}")
        else:
            os.kill(killed, signal.SIGKILL)
        for pid in served:
            self.begins(pid, count)
        return killed

    @staticmethod
    def _agent_of(rank: int) -> int:
        """The agent that serves a rank: it has the socket's path that is in the rank's environment."""
        variables = Path(f"/proc/{rank}/environ").read_bytes().decode().split("\0")
        [path] = [each.partition("=")[2] for each in variables if each.startswith("TALWEG_AGENT_S")]
        parent = Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
                if f"--socket_path={path}" in line:
                    return int(child)
        return 0
