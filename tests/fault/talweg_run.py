# SPDX-License-Identifier: Apache-2.0
"""A `talweg run` whose daemons a test kills by their PIDs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

from cluster import DEADLINE_S, PROGRAMS, TOOL, children
from torch_forks import TorchForks


def daemons_of(run: int, name: str, arguments: Collection[str] = ()) -> list[int]:
    """Returns the PIDs of a `talweg run`'s daemons with that name and these arguments."""
    found = []
    for supervisor in children(run):
        for pid in children(supervisor):
            with contextlib.suppress(OSError):  # The process has ended.
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if line[0].endswith(name) and {*arguments} <= {*line}:
                    found.append(pid)
    return found


class TalwegRun:
    """A `talweg run` of a program of programs/, which ends when DIRECTORY/stop exists."""

    def __init__(
        self,
        test: unittest.TestCase,
        program: Sequence[str],
        options: Sequence[str],
        forks: TorchForks | None = None,
    ) -> None:
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        test.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.forks = forks
        line = [sys.executable, "-P", *(forks.prefix if forks else [])]
        line += [str(PROGRAMS / program[0]), str(self.directory), *program[1:]]
        self.process = subprocess.Popen(
            [str(TOOL), "run", *options, "--restart-pause-ms=1", "--", *line],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        test.addCleanup(self._end)

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=DEADLINE_S)

    def fail(self, what: str) -> NoReturn:
        """Ends the run, and raises AssertionError with its output."""
        self.process.terminate()
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        raise AssertionError(f"{what}: {output}")

    def daemon(self, name: str, *arguments: str, not_pid: int = 0) -> int:
        """Returns the PID of the daemon with these arguments, when it is there."""
        end = time.monotonic() + DEADLINE_S
        while True:
            for pid in daemons_of(self.process.pid, name, arguments):
                if pid != not_pid:
                    return pid
            assert time.monotonic() < end, f"no {name} {arguments}"
            time.sleep(0.01)

    def stop(self) -> str:
        """Has the ranks end well. Returns the output."""
        (self.directory / "stop").touch()
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, output
        return output
