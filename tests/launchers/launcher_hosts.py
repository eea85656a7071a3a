# SPDX-License-Identifier: Apache-2.0
"""For tests of launchers: hosts that are network namespaces, with names of their own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import ClassVar

from launcher_site import SiteTest
from permitted import network_for


class HostsTest(SiteTest):
    """A test on several hosts. They share this machine's files."""

    hosts: ClassVar[list[str]] = ["a", "b"]

    def setUp(self) -> None:
        self.network = network_for(self, self.hosts)
        super().setUp()

    def on(self, host: str) -> list[str]:
        """What goes before a command, to run it on that host."""
        # A host name of its own; Open MPI also asks for the directory of its user's jobs by it.
        become = ["unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh"]
        return [*self.network.enter(host), *become]

    def remote_shell(self) -> Path:
        """A program that is called as ssh is: ADDRESS COMMAND..."""
        cases = [
            f'{self.network.address(host)}) shift; exec {shlex.join(self.on(host))} sh -c "$*" ;;'
            for host in self.hosts
        ]
        path = self.directory / "remote_shell"
        path.write_text("\n".join(["#!/bin/sh", "case $1 in", *cases, "esac", "exit 9", ""]))
        path.chmod(0o755)
        return path
