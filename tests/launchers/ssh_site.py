# SPDX-License-Identifier: Apache-2.0
"""Runs a real sshd on addresses of the loopback interface, with its own keys and port."""

from __future__ import annotations

import socket

import sshd
from launcher_site import SiteTest

HOSTS = ("127.0.0.2", "127.0.0.3")  # The launcher does not take these for its own host.


class SshTest(SiteTest):
    def setUp(self) -> None:
        super().setUp()
        sshd.make_keys(self.directory, "other_key")
        self.key = str(self.directory / "user_key")
        with socket.create_server((HOSTS[0], 0)) as probe:
            self.port = probe.getsockname()[1]
        sshd.start(self, self.directory, HOSTS, self.port, self._answers)
        # ssh finds a user's known hosts by the password database, and not by HOME.
        tools = self.directory / "tools"
        tools.mkdir()
        wrapper = tools / "ssh"
        wrapper.write_text(sshd.client(self.directory))
        wrapper.chmod(0o755)
        self.environment["PATH"] = f"{tools}:{self.environment['PATH']}"

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOSTS[1], self.port), 5).close()
        except OSError:
            return False
        return True

    def processes(self) -> dict[int, str]:
        found = super().processes()
        return {pid: line for pid, line in found.items() if not line.startswith("sshd")}
