# SPDX-License-Identifier: Apache-2.0
"""Hosts that are network namespaces with host names of their own, for tests of launchers."""

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
        """Returns words to put before a command. They run it on that host."""
        # The host has its own name. Open MPI also names the directory of a user's jobs by it.
        become = ["unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh"]
        return [*self.network.enter(host), *become]

    def remote_shell(self) -> Path:
        """Returns a program that takes the arguments of ssh: ADDRESS COMMAND..."""
        cases = [
            f'{self.network.address(host)}) shift; exec {shlex.join(self.on(host))} sh -c "$*" ;;'
            for host in self.hosts
        ]
        path = self.directory / "remote_shell"
        path.write_text("\n".join(["#!/bin/sh", "case $1 in", *cases, "esac", "exit 9", ""]))
        path.chmod(0o755)
        return path
