# SPDX-License-Identifier: Apache-2.0
"""Hosts that a launcher reaches by ssh: a program of the test stands in for ssh."""

from __future__ import annotations

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

from talweg._node import hosts
from talweg._node.listed_hosts import Host

# ssh runs a login shell, which runs the user's own file of commands before the command.
_SSH = """#!/bin/sh
while getopts o:p:i:l: option; do :; done
shift $((OPTIND - 1))
shift
. {directory}/bashrc
exec sh -c "$*"
"""


class HostsTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.ssh = self.directory / "ssh"
        self.ssh.write_text(_SSH.format(directory=self.directory))
        self.ssh.chmod(0o755)
        self.said: list[str] = []

    def _run(self, bashrc: str, command: str) -> tuple[hosts.Outcome, str]:
        """Returns how a rank ends on a host whose shell runs `bashrc`, and what stderr shows."""
        (self.directory / "bashrc").write_text(bashrc)
        launch = hosts.Launch(
            ["sh", "-c", command],
            1,
            [Host("other", 1)],
            lambda _, stream, text: self.said.append(f"{stream} {text}"),
            hosts.Ssh(program=str(self.ssh)),
        )
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            return hosts.run(launch), shown.getvalue()

    def test_what_a_hosts_shell_prints_ends_nothing(self) -> None:
        for printed, wanted in (
            ("echo hello; echo", "hello"),
            ("printf '\\377\\n'", "\ufffd"),
            ("printf 'no end of a line '", "no end of a line"),
            ('echo \'{"rank": 0, "told": 1}\'', '{"rank": 0, "told": 1}'),
            ("echo '[1]'", "[1]"),
            ("echo '{\"rank\": '", '{"rank":'),
        ):
            with self.subTest(printed):
                self.said.clear()
                outcome, shown = self._run(printed, "echo '{\"here\": 1}'; exit 3")
                self.assertEqual(outcome.status, 3)
                self.assertEqual(self.said, ['stdout {"here": 1}'])
                self.assertEqual(shown, f"talweg: host other printed: {wanted}\n")

    def test_a_silent_shell_is_not_named(self) -> None:
        outcome, shown = self._run("", "exit 0")
        self.assertEqual((outcome.status, outcome.failure, shown), (0, "", ""))


if __name__ == "__main__":
    unittest.main()
