# SPDX-License-Identifier: Apache-2.0
"""A real sshd on addresses of the loopback interface, with keys and a port of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import unittest
from pathlib import Path

import job
from launcher_site import SiteTest, needs

_CONFIGURATION = """
Port {port}
ListenAddress 127.0.0.2
ListenAddress 127.0.0.3
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""
HOSTS = ("127.0.0.2", "127.0.0.3")  # Neither is a name of this host.


class SshTest(SiteTest):
    def setUp(self) -> None:
        super().setUp()
        if os.getuid() != 0:
            print("SKIPPED: sshd is root's")
            raise unittest.SkipTest("sshd is root's")
        sshd, ssh = needs("sshd"), needs("ssh")
        with socket.create_server((HOSTS[0], 0)) as probe:
            self.port = probe.getsockname()[1]
        for name in ("host_key", "user_key", "other_key"):
            line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name)]
            subprocess.run(line, check=True, timeout=job.TIMEOUT_S)
        self.key = str(self.directory / "user_key")
        configuration = self.directory / "sshd_config"
        configuration.write_text(_CONFIGURATION.format(port=self.port, directory=self.directory))
        # sshd wants /run/sshd, which is then this one's own.
        script = 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$@"'
        line = ["unshare", "--mount", "sh", "-c", script, "sh", sshd, "-D", "-e", "-f"]
        self.log = self.directory / "sshd.log"
        with self.log.open("wb") as log:
            self.sshd = subprocess.Popen(
                [*line, str(configuration)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.addCleanup(self.sshd.wait)
        self.addCleanup(self.sshd.terminate)
        self._await_sshd()
        # Known hosts are a user's, by the password database.
        tools = self.directory / "tools"
        tools.mkdir()
        wrapper = tools / "ssh"
        known = self.directory / "known_hosts"
        # That a host is new is no news here.
        options = f"-o LogLevel=ERROR -o UserKnownHostsFile={known}"
        wrapper.write_text(f'#!/bin/sh\nexec {ssh} {options} "$@"\n')
        wrapper.chmod(0o755)
        self.environment["PATH"] = f"{tools}:{self.environment['PATH']}"

    def _await_sshd(self) -> None:
        end = time.monotonic() + job.TIMEOUT_S
        while True:
            try:
                socket.create_connection((HOSTS[1], self.port), 5).close()
                return
            except OSError:
                if self.sshd.poll() is not None or time.monotonic() > end:
                    self.fail(f"no sshd: {Path(self.log).read_text()}")
                time.sleep(0.05)

    def processes(self) -> dict[int, str]:
        found = super().processes()
        return {pid: line for pid, line in found.items() if not line.startswith("sshd")}
