# SPDX-License-Identifier: Apache-2.0
"""Hosts with their own networks that a launcher reaches by a real ssh and sshd."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

import sshd
from cluster import TOOL
from permitted import network_for
from virtual_hosts import HostsJob

LAUNCHER = "launcher"


class SshHosts:
    """The launcher's host, and other hosts with an sshd each. All end with the test."""

    def __init__(self, test: unittest.TestCase, names: Sequence[str]) -> None:
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        test.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        sshd.make_keys(self.directory)
        self.network = network_for(test, [LAUNCHER, *names])
        self._own: set[int] = set()
        for name in names:
            self._start_sshd(test, name)

    def _start_sshd(self, test: unittest.TestCase, name: str) -> None:
        address, enter = self.network.address(name), self.network.enter(name)
        probe = [*self.network.enter(LAUNCHER), "bash", "-c", f"exec 3<>/dev/tcp/{address}/22"]

        def answers() -> bool:
            return subprocess.run(probe, check=False, capture_output=True).returncode == 0

        daemon = sshd.start(test, self.directory, [address], 22, answers, enter)
        self._own |= {daemon.pid, self.network.pid(name)}
        self._own |= self._inside(name)

    def _inside(self, name: str) -> set[int]:
        """Returns all processes in a host's network."""
        wanted, found = os.stat(f"/proc/{self.network.pid(name)}/ns/net").st_ino, set()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.stat(path / "ns" / "net").st_ino == wanted:
                    found.add(int(path.name))
            except OSError:  # The process has ended.
                continue
        return found

    def processes(self, name: str) -> list[int]:
        """Returns the processes that run on a host, except for its sshd."""
        return sorted(self._inside(name) - self._own)

    def programs(self, name: str) -> list[str]:
        """Returns the names of the programs that run on a host."""
        found = []
        for pid in self.processes(name):
            try:
                found.append(Path(f"/proc/{pid}/comm").read_text().strip())
            except OSError:
                continue
        return found


class SshHostsJob(HostsJob):
    """A `talweg run` on such hosts."""

    def __init__(
        self,
        test: unittest.TestCase,
        hosts: SshHosts,
        names: str,
        options: Sequence[str],
        program: Sequence[str],
        **variables: str,
    ) -> None:
        self._on = hosts
        self.launcher = (*hosts.network.enter(LAUNCHER), str(TOOL), "run")
        self.variables = variables
        addresses = " ".join(hosts.network.address(name) for name in names.split())
        super().__init__(test, addresses, options, program)
        test.addCleanup(self._kill_all, names.split())

    def _kill_all(self, names: Sequence[str]) -> None:
        for name in names:
            for pid in self._on.processes(name):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def ssh(self) -> str:
        place = self._on.directory
        return sshd.client(place, "-o User=root", f"-i {place}/user_key")

    def address(self, name: str) -> str:
        return self._on.network.address(name)
