# SPDX-License-Identifier: Apache-2.0
"""Hosts with networks of their own, that a launcher reaches by a real ssh and sshd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from collections.abc import Sequence
from pathlib import Path

from cluster import DEADLINE_S, TOOL
from netns import Network, NotPermitted
from virtual_hosts import HostsJob

_CONFIGURATION = """
Port 22
ListenAddress {address}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""
LAUNCHER = "launcher"


def _needs(program: str) -> str:
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        print(f"SKIPPED: no {program}; bazel/prepare --for=test installs it")
        raise unittest.SkipTest(f"no {program}")
    return path


class SshHosts:
    """The launcher's host, and others with an sshd each. All end with the test."""

    def __init__(self, test: unittest.TestCase, names: Sequence[str]) -> None:
        sshd, self.ssh = _needs("sshd"), _needs("ssh")
        if os.getuid() != 0:
            print("SKIPPED: sshd is root's")
            raise unittest.SkipTest("sshd is root's")
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        test.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        network = Network([LAUNCHER, *names])
        try:
            self.network = network.__enter__()
        except NotPermitted as refusal:
            print(f"SKIPPED: {refusal}")
            raise unittest.SkipTest(str(refusal)) from None
        test.addCleanup(network.__exit__)
        for name in ("host_key", "user_key"):
            line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name)]
            subprocess.run(line, check=True, timeout=DEADLINE_S)
        self._own: set[int] = set()
        for name in names:
            self._start_sshd(test, sshd, name)

    def _start_sshd(self, test: unittest.TestCase, sshd: str, name: str) -> None:
        address = self.network.address(name)
        configuration = self.directory / f"sshd_config.{name}"
        configuration.write_text(_CONFIGURATION.format(address=address, directory=self.directory))
        # sshd wants /run/sshd, which is then this one's own.
        script = 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$@"'
        line = ["unshare", "--mount", "sh", "-c", script, "sh", sshd, "-D", "-e", "-f"]
        with (self.directory / f"sshd.log.{name}").open("wb") as log:
            daemon = subprocess.Popen(
                [*self.network.enter(name), *line, str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        test.addCleanup(daemon.wait)
        test.addCleanup(daemon.terminate)
        end = time.monotonic() + DEADLINE_S
        probe = [*self.network.enter(LAUNCHER), "bash", "-c", f"exec 3<>/dev/tcp/{address}/22"]
        while subprocess.run(probe, check=False, capture_output=True).returncode != 0:
            assert daemon.poll() is None and time.monotonic() < end, "no sshd"
            time.sleep(0.05)
        self._own |= {daemon.pid, self.network.pid(name)}
        self._own |= self._inside(name)

    def _inside(self, name: str) -> set[int]:
        """All processes in a host's network."""
        wanted, found = os.stat(f"/proc/{self.network.pid(name)}/ns/net").st_ino, set()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.stat(path / "ns" / "net").st_ino == wanted:
                    found.add(int(path.name))
            except OSError:  # It has ended.
                continue
        return found

    def processes(self, name: str) -> list[int]:
        """What runs on a host beside its own daemon."""
        return sorted(self._inside(name) - self._own)

    def programs(self, name: str) -> list[str]:
        """Their names."""
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
        options = f"-o UserKnownHostsFile={place}/known_hosts -o User=root -i {place}/user_key"
        return f'#!/bin/sh\nexec {self._on.ssh} {options} "$@"\n'

    def address(self, name: str) -> str:
        return self._on.network.address(name)
