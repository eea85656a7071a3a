# SPDX-License-Identifier: Apache-2.0
"""Lists of hosts: what is read, what is refused, and what changes."""

from __future__ import annotations

import os
import tempfile
import time
import unittest
from pathlib import Path

from talweg._node.listed_hosts import (
    FixedHosts,
    Host,
    HostFile,
    HostList,
    HostScript,
    parse_hosts,
    parse_lines,
)
from talweg.errors import InvalidArgument, TalwegError

_DEADLINE_S = 60


class ListedHostsTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "hosts"

    def _next(self, hosts: HostList) -> list[Host]:
        end = time.monotonic() + _DEADLINE_S
        while (found := hosts.poll(time.monotonic())) is None:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)
        return found

    def test_what_is_read(self) -> None:
        text = "# all\na\nb:2 # two\n\n c-1.x slots=3\n"
        self.assertEqual(parse_lines(text, "f"), [Host("a", 1), Host("b", 2), Host("c-1.x", 3)])
        self.assertEqual(parse_lines("a\nb:1", "f", 4), [Host("a", 4), Host("b", 1)])
        self.assertEqual(parse_lines("", "f"), [])
        self.assertEqual(parse_hosts("a:2, b"), [Host("a", 2), Host("b", 1)])

    def test_what_is_refused(self) -> None:
        many = "9" * 5000  # More digits than Python makes a number of.
        lines = ["a b", "a:x", "a slots=x", "a:1 slots=1", "-oProxy", "a slots=1 b", "a;b", "a\0b"]
        for line in (*lines, f"a:{many}", f"a slots={many}", "a:\u0663"):
            with (
                self.subTest(line[:20]),
                self.assertRaisesRegex(InvalidArgument, "f: .* is not a host: wr"),
            ):
                parse_lines(line, "f")
        with self.assertRaisesRegex(InvalidArgument, "host a is there twice"):
            parse_lines("a\na:2", "f")

    def test_a_list_that_does_not_change(self) -> None:
        hosts = FixedHosts(parse_hosts("a:2,b"))
        self.assertEqual(hosts.poll(10), [Host("a", 2), Host("b", 1)])
        self.assertIsNone(hosts.poll(11))
        with self.assertRaisesRegex(InvalidArgument, "host a is there twice"):
            FixedHosts(parse_hosts("a:2,b,a"))

    def test_a_file_that_is_no_text(self) -> None:
        self.path.write_bytes(b"\xff\xfe\n")
        with self.assertRaisesRegex(InvalidArgument, "--hostfile=.*is not a host"):
            HostFile(str(self.path), 1, 2).poll(10)

    def test_a_file_that_changes(self) -> None:
        hosts = HostFile(str(self.path), 1, 2)
        with self.assertRaisesRegex(TalwegError, "No such file"):
            hosts.poll(10)
        self.path.write_text("a\n")
        self.assertIsNone(hosts.poll(10.5))
        self.assertEqual(hosts.poll(11), [Host("a", 2)])
        self.assertIsNone(hosts.poll(12))
        self.path.write_text("a b c\n")
        self.assertIsNone(hosts.poll(13))
        with self.assertRaisesRegex(InvalidArgument, "'a b c' is not a host"):
            hosts.poll(14)
        self.path.write_text("a\nb")
        self.assertIsNone(hosts.poll(15))
        self.path.write_text("a\nb:1\n")
        self.assertIsNone(hosts.poll(16))
        self.assertIsNone(hosts.poll(16.5))
        self.assertEqual(hosts.poll(17), [Host("a", 2), Host("b", 1)])
        self.assertIsNone(hosts.poll(18))

    def test_a_script(self) -> None:
        self.path.write_text('#!/bin/sh\necho a:2\ncat "$0.more" || exit 3\n')
        hosts = HostScript(str(self.path), 0, 1)
        self.addCleanup(hosts.close)
        with self.assertRaisesRegex(TalwegError, "cannot be started: Permission denied.*chmod"):
            hosts.poll(0)
        self.path.chmod(0o755)
        with self.assertRaisesRegex(TalwegError, "failed: exit status 3\n    cat: .*No such file"):
            self._next(hosts)
        Path(f"{self.path}.more").write_text("b\n")
        self.assertEqual(self._next(hosts), [Host("a", 2), Host("b", 1)])
        Path(f"{self.path}.more").write_text("b c\n")
        with self.assertRaisesRegex(InvalidArgument, "'b c' is not a host"):
            self._next(hosts)

    def test_a_script_with_arguments(self) -> None:
        """A path with spaces is a path all the same."""
        for name in ("hosts", "own hosts"):
            path = self.path.with_name(name)
            path.write_text('#!/bin/sh\necho "${1:-a}:2"\n')
            path.chmod(0o755)
        for command, host in (
            (str(self.path.with_name("own hosts")), "a"),
            (f"{self.path} b", "b"),
            (f"sh {self.path} 'c' # hosts", "c"),
        ):
            hosts = HostScript(command, 0, 1)
            self.addCleanup(hosts.close)
            self.assertEqual(self._next(hosts), [Host(host, 2)])
        hosts = HostScript("no-such-script b", 0, 1)
        self.addCleanup(hosts.close)
        with self.assertRaisesRegex(TalwegError, "exit status 127\n.*no-such-script: not found"):
            self._next(hosts)

    def test_a_script_that_sh_reads(self) -> None:
        """It has no #! line, or is a line without spaces."""
        for name in ("hosts", "own hosts"):
            path = self.path.with_name(name)
            path.write_text("echo a:2\n")
            path.chmod(0o755)
            hosts = HostScript(str(path), 0, 1)
            self.addCleanup(hosts.close)
            self.assertEqual(self._next(hosts), [Host("a", 2)])
        self.path.write_text("b:3\n")
        hosts = HostScript(f"cat<{self.path}", 0, 1)
        self.addCleanup(hosts.close)
        self.assertEqual(self._next(hosts), [Host("b", 3)])

    def test_a_script_of_this_directory(self) -> None:
        """Horovod's page names one without a path."""
        self.path.write_text("echo a:2\n")
        self.path.chmod(0o755)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.path.parent)
        hosts = HostScript(self.path.name, 0, 1)
        self.addCleanup(hosts.close)
        self.assertEqual(self._next(hosts), [Host("a", 2)])

    def test_what_is_refused_is_shown_in_short(self) -> None:
        with self.assertRaises(InvalidArgument) as refused:
            parse_lines("\x1b[2J" + "x" * 10000, "f")
        self.assertTrue(str(refused.exception).isprintable())
        self.assertLess(len(str(refused.exception)), 300)

    def test_a_file_without_end(self) -> None:
        with self.assertRaisesRegex(InvalidArgument, "--hostfile=/dev/zero has more than 1 MiB"):
            HostFile("/dev/zero", 1, 1).poll(10)

    def test_a_script_that_prints_without_end(self) -> None:
        self.path.write_text("#!/bin/sh\nexec yes a\n")
        self.path.chmod(0o755)
        hosts = HostScript(str(self.path), 1, 1)
        self.addCleanup(hosts.close)
        self.assertIsNone(hosts.poll(10))
        end = time.monotonic() + _DEADLINE_S
        with self.assertRaisesRegex(TalwegError, "has printed more than 1 MiB, and was killed"):
            while time.monotonic() < end:  # By its own clock the script has time.
                hosts.poll(10)

    def test_a_script_that_does_not_end(self) -> None:
        self.path.write_text("#!/bin/sh\nexec sleep 1000\n")
        self.path.chmod(0o755)
        hosts = HostScript(str(self.path), 1, 1)
        self.addCleanup(hosts.close)
        self.assertIsNone(hosts.poll(10))
        self.assertIsNone(hosts.poll(69))
        with self.assertRaisesRegex(TalwegError, "has not ended within 60 s, and was killed"):
            hosts.poll(70)


if __name__ == "__main__":
    unittest.main()
