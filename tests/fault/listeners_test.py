# SPDX-License-Identifier: Apache-2.0
"""Tests on which ports and sockets the processes of `talweg run` listen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster import DEADLINE_S, PROGRAMS, TOOL

_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp.
_ACCEPTS = 1 << 16  # SO_ACCEPTCON in /proc/net/unix.


def _descendants(pid: int) -> list[int]:
    """Returns the process and all its descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def _sockets_of(pids: list[int]) -> set[str]:
    """Returns the inodes of the sockets that the processes hold."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
            except OSError:
                continue
            if found:
                inodes.add(found[1])
    return inodes


def _ports(inodes: set[str]) -> set[int]:
    """Returns the TCP ports on which these sockets listen."""
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _udp_ports(inodes: set[str]) -> set[int]:
    """Returns the UDP ports to which these sockets are bound."""
    ports = set()
    for table in ("udp", "udp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _unix_names(inodes: set[str], *, listening: bool) -> set[str]:
    """Returns the names of Unix sockets; with `listening` only those that accept connections."""
    names = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if fields[6] not in inodes or (listening and not int(fields[3], 16) & _ACCEPTS):
            continue
        if listening or len(fields) > 7:
            names.add(fields[7] if len(fields) > 7 else "")
    return names


class _Run:
    """A `talweg run` whose ranks make steps."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.sockets = _sockets_of(_descendants(process.pid))
        self._errors = errors

    @property
    def errors(self) -> str:
        return self._errors.read_text()


@contextmanager
def _run(*options: str, **variables: str) -> Iterator[_Run]:
    with tempfile.TemporaryDirectory(prefix="talweg.", dir="/tmp") as directory:
        environment = dict(os.environ, TMPDIR=directory, **variables)
        environment.pop("XDG_RUNTIME_DIR", None)
        errors = Path(directory) / "errors"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [
                    str(TOOL),
                    "run",
                    "--ranks-per-node=2",
                    *options,
                    "--",
                    sys.executable,
                    "-P",
                    "-u",
                    str(PROGRAMS / "steady.py"),
                ],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "step 3 of rank" in line:
                    break
            else:
                raise AssertionError(f"ended early: {lines} {errors.read_text()}")
            yield _Run(process, errors)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)


class ListenersTest(unittest.TestCase):
    def test_a_run_on_one_machine_opens_no_port(self) -> None:
        for options in (["--nodes=1"], ["--nodes=2", "--aggregators=2"]):
            with self.subTest(options), _run(*options) as run:
                self.assertEqual(_ports(run.sockets), set())
                self.assertEqual(_udp_ports(run.sockets), set())
                names = _unix_names(run.sockets, listening=True)
                # Each agent has two, the scheduler has one, and each aggregator has two.
                self.assertEqual(len(names), 2 if options == ["--nodes=1"] else 4 + 1 + 4, names)
                directories = {os.path.dirname(name) for name in names}
                self.assertEqual(len(directories), 1, names)
                self.assertRegex(directories.pop(), r"^/tmp/talweg\.\w+/talweg-run-\w+$")
                self.assertNotIn("TCP ports", run.errors)
                # No socket has a name without a file ("@..."), which would have no mode.
                bound = _unix_names(run.sockets, listening=False)
                self.assertLessEqual(names, bound)
                self.assertEqual([name for name in bound if not name.startswith("/")], [])
                # A path fits into an address, and leaves room for a longer TMPDIR.
                for name in names:
                    self.assertLess(len(name.partition("/talweg-run-")[2]), 32, name)

    def test_the_network_is_opened_when_it_is_asked_for_and_that_is_said(self) -> None:
        asked: Sequence[tuple[list[str], dict[str, str]]] = (
            (["--nodes=1", "--force-distributed"], {}),
            (["--nodes=2"], {"TALWEG_FORCE_DISTRIBUTED": "1"}),
            (["--nodes=2"], {"TALWEG_LOCAL_TRANSPORT": "false"}),
        )
        for options, variables in asked:
            with self.subTest(options=options, variables=variables):
                with _run(*options, **variables) as run:
                    ports = _ports(run.sockets)
                    # The scheduler and each agent have one, and the aggregator has two.
                    self.assertEqual(len(ports), 4 if "--nodes=1" in options else 5)
                    (said,) = [line for line in run.errors.splitlines() if "TCP ports" in line]
                    self.assertIn(options[-1] if not variables else next(iter(variables)), said)
                    told = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", said)}
                    self.assertEqual(told, ports)


if __name__ == "__main__":
    unittest.main()
