# SPDX-License-Identifier: Apache-2.0
"""Hosts that a launcher reaches by ssh, for tests. All of them are this host.

A program named ssh runs each command here. It records the PID for each host, so a test can kill a
host: all its processes at once, without notice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

import rank_logs
from cluster import DEADLINE_S, PROGRAMS, TOOL, children
from torch_forks import TorchForks

# A host whose name begins with "slow" is reached when SLOW exists, one with "stuck" never.
_SSH = """#!/bin/sh
while getopts o:p:i:l: option; do :; done
shift $((OPTIND - 1))
host=$1
shift
echo $$ >>{directory}/ssh.$host
case $host in
  slow*) until [ -e {directory}/SLOW ]; do sleep 0.05; done ;;
  stuck*) exec sleep 1000 ;;
esac
exec sh -c "$*"
"""


def descendants(pid: int) -> list[int]:
    """Returns the process and all its descendants. The process itself comes first."""
    found = [pid]
    for child in children(pid):
        found += descendants(child)
    return found


class HostsJob:
    """A launcher's job on hosts. It runs a program of programs/ until DIRECTORY/stop exists."""

    launcher: Sequence[str] = (str(TOOL), "run")
    variables: Mapping[str, str] = MappingProxyType({})  # Further variables for the launcher.

    def ssh(self) -> str:
        """Returns the text of the program that the launcher calls as ssh."""
        return _SSH.format(directory=self.directory)

    def __init__(
        self,
        test: unittest.TestCase,
        hosts: str,
        options: Sequence[str],
        program: Sequence[str],
        forks: TorchForks | None = None,
    ) -> None:
        self._forks = forks
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        test.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        tools = self.directory / "tools"
        tools.mkdir()
        (tools / "ssh").write_text(self.ssh())
        (tools / "ssh").chmod(0o755)
        self._has_killed = False
        self.ranks = self.directory / "ranks"
        self.ranks.mkdir()
        self.temporary = self.directory / "tmp"
        self.temporary.mkdir()
        self.hosts = self.directory / "hosts"
        self.name_hosts(hosts)
        self.script = self.directory / "script"
        self.script.write_text(f"#!/bin/sh\nexec cat {self.hosts}\n")
        self.script.chmod(0o755)
        words = [each.format(hosts=self.hosts, script=self.script) for each in options]
        program = [each.replace("{ranks}", str(self.ranks)) for each in program]
        if program[0].endswith(".py"):
            script = str(PROGRAMS / program[0])
            prefix = forks.prefix if forks else []
            program = [sys.executable, "-P", *prefix, script, str(self.ranks), *program[1:]]
        self.output = self.directory / "output"
        kept = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        with self.open_output() as output:
            self.process = subprocess.Popen(
                [*self.launcher, *words, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **kept,
                    "PATH": f"{tools}:{os.environ['PATH']}",
                    "TALWEG_PYTHON": sys.executable,
                    "TMPDIR": str(self.temporary),
                    **self.variables,
                },
            )
        test.addCleanup(self._end)

    def open_output(self) -> IO[bytes]:
        """Opens the file to which the launcher writes."""
        return self.output.open("wb")

    def _end(self) -> None:
        started = self.processes()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def name_hosts(self, hosts: str) -> None:
        """Changes the list of hosts, given as "a b:2"."""
        new = self.directory / "hosts.new"
        new.write_text("".join(f"{host}\n" for host in hosts.split()))
        new.rename(self.hosts)

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def fail(self, what: str) -> None:
        raise AssertionError(f"{what}: {self.text()[-6000:]}")

    def wait_for(self, what: str, found: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not found():
            if self.process.poll() is not None or time.monotonic() > end:
                self.fail(f"not {what}")
            time.sleep(0.01)

    def says(self, text: str, times: int = 1) -> None:
        """Returns when the launcher has printed the text `times` times."""
        self.wait_for(text, lambda: self.text().count(text) >= times)

    def said(self) -> dict[int, list[str]]:
        return rank_logs.said(self.ranks)

    def go_on(self, ranks: int) -> None:
        """Returns when so many processes have ended ten more steps."""
        self.wait_for(f"{ranks} ranks go on", rank_logs.going_on(self.ranks, ranks))

    def processes(self, host: str = "*") -> list[int]:
        """Returns the processes of a host, or of all hosts."""
        found = []
        for path in self.directory.glob(f"ssh.{host}"):
            for pid in path.read_text().split():
                found += descendants(int(pid))
        if self._forks is not None:
            found += [rank for pid in found if (rank := self._forks.rank_of(pid)) is not None]
        return [pid for pid in found if Path(f"/proc/{pid}").exists()]

    def kill_host(self, host: str) -> None:
        """Kills all processes of a host, as a power cut does."""
        self._has_killed = True
        pids = self.processes(host)
        for pid in pids:  # Stopped processes cannot start others, or tell anything.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for pid in {*pids, *self.processes(host)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Tells the ranks to end well."""
        (self.ranks / "stop").touch()

    def end(self, status: int = 0) -> str:
        """Returns the output when the launcher has ended with that status and has left nothing."""
        try:
            found = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.fail("no end")
        if found != status:
            self.fail(f"exit status {found}")
        end = time.monotonic() + DEADLINE_S
        # A host without power removes nothing.
        while left := [*self.processes(), *([] if self._has_killed else self.temporary.iterdir())]:
            if time.monotonic() > end:
                self.fail(f"left: {left}")
            time.sleep(0.01)
        return self.text()

    def weights(self) -> list[str]:
        """Returns the last lines of ranks that have ended well."""
        found = [line for lines in self.said().values() for line in lines]
        return [line for line in found if line.startswith("weights ")]
