# SPDX-License-Identifier: Apache-2.0
"""A node's keeper, with a program in the place of its daemons."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from unittest import mock

from talweg import _programs
from talweg._node import join, places
from talweg._node.daemons import Daemon
from talweg._node.keeper import Keeper, Plan
from talweg._node.launchers import Place
from talweg._node.signals import Signals
from talweg._node.stderr import say

# It ends a hang.
_DEADLINE_S = 120.0

# The tool: a daemon that takes its time to end. It keeps a log in the directory that it is in.
_DAEMON = """
import json, os, signal, sys, time
home = os.path.dirname(sys.argv[0])
options = dict(word[2:].partition("=")[::2] for word in sys.argv[2:])

def log(text):
    with open(os.path.join(home, "log"), "a") as file:
        file.write(text + chr(10))

def end(*_):
    log("asked")
    while not os.path.exists(os.path.join(home, "may_end")):
        time.sleep(0.01)
    log("ended")
    os._exit(0)

signal.signal(signal.SIGTERM, end)
log(f"started {os.getpid()} {os.getcwd()}")
ready = int(options["ready_fd"])
os.write(ready, json.dumps({"addresses": {}}).encode())
os.close(ready)
while True:
    signal.pause()
"""


class _Test(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="talweg.", dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name).resolve()
        (self.directory / "daemon.py").write_text(_DAEMON)
        self.tool = self.directory / "tool"
        self.tool.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -I -S {self.directory}/daemon.py "$@"\n'
        )
        self.tool.chmod(0o755)

    def log(self) -> list[str]:
        path = self.directory / "log"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, found: Callable[[], bool]) -> None:
        end = time.monotonic() + _DEADLINE_S
        while not found():
            self.assertLess(time.monotonic(), end, self.log())
            time.sleep(0.01)

    def let_daemons_end(self) -> None:
        (self.directory / "may_end").touch()


class KeeperTest(_Test):
    """A keeper of one rank, which is this process."""

    def _start(self, stderr: int | IO[bytes] = subprocess.DEVNULL) -> socket.socket:
        """Starts a keeper. Returns the rank's connection when the agent serves."""
        place = self.directory / "node" / "job"
        plan = Plan(str(self.tool), str(place), "job", "job", 0, 1, 1, "here")
        started = subprocess.run(
            [sys.executable, "-I", "-S", "-c", join._START, str(Path(join.__file__).parents[1])],
            input=json.dumps(vars(plan)).encode() + b"\n",
            stdout=subprocess.PIPE,
            stderr=stderr,
            check=True,
        )
        self.assertEqual(json.loads(started.stdout), {"port": 0})
        rank = socket.socket(socket.AF_UNIX)
        self.addCleanup(rank.close)
        rank.settimeout(_DEADLINE_S)
        rank.connect(f"{place}/keeper.sock")
        self.keeper = struct.unpack(
            "iII", rank.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )[0]
        self.pidfd = os.pidfd_open(self.keeper)
        self.addCleanup(os.close, self.pidfd)
        self.addCleanup(self._end)
        self._tell(rank, {"local_rank": 0})
        self.assertIn("agent", self._hear(rank))
        self._tell(rank, {"joined": True})
        return rank

    def _end(self) -> None:
        self.let_daemons_end()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
        self._wait_for_keeper()

    def _wait_for_keeper(self) -> None:
        self.assertTrue(select.select([self.pidfd], [], [], _DEADLINE_S)[0])

    def _wait_for_lines(self, count: int) -> None:
        self.wait_for(lambda: len(self.log()) >= count)

    def _tell(self, rank: socket.socket, message: dict[str, Any]) -> None:
        rank.sendall(json.dumps(message).encode() + b"\n")

    def _hear(self, rank: socket.socket) -> dict[str, Any]:
        text = b""
        while not text.endswith(b"\n"):
            part = rank.recv(1)
            self.assertTrue(part, "the keeper has ended")
            text += part
        return dict(json.loads(text))

    def test_a_signal_gives_daemons_the_time_to_end(self) -> None:
        rank = self._start()
        os.kill(self.keeper, signal.SIGTERM)
        self.assertRegex(self._hear(rank)["failed"], f"ended by signal {signal.SIGTERM}")
        self.wait_for(lambda: "asked" in self.log())
        self.let_daemons_end()
        self._wait_for_keeper()
        self.assertEqual(self.log()[1:], ["asked", "ended"])

    def test_a_message_that_cannot_be_written_ends_nothing(self) -> None:
        with open("/dev/full", "wb", buffering=0) as full:
            rank = self._start(full)
        for life in range(1, 3):  # The keeper says that the agent has ended, and starts again.
            os.kill(int(self.log()[-1].split()[1]), signal.SIGKILL)
            self._tell(rank, {"lost": True})
            self._wait_for_lines(life + 1)
            self._tell(rank, {"attached": True})
        self._tell(rank, {"bye": True})
        self.let_daemons_end()
        self.assertEqual(rank.recv(1), b"")
        self.assertEqual(self.log()[-2:], ["asked", "ended"])


class WaitTest(_Test):
    def test_a_second_signal_ends_the_wait(self) -> None:
        place = self.directory / "job"
        place.mkdir()
        plan = Plan(str(self.tool), str(place), "job", "job", 0, 1, 1, "here")
        keeper = Keeper(plan, mock.Mock())
        self.addCleanup(keeper._listener.close)
        self.addCleanup(keeper._wake.close)
        self.addCleanup(keeper._wake_writer.close)
        self.addCleanup(keeper._selector.close)
        keeper._signals.add(signal.SIGTERM, 0)
        turns: list[float] = []

        def turn(timeout_s: float) -> None:
            turns.append(timeout_s)
            keeper._signals.add(signal.SIGTERM, 0.4 * len(turns))

        with mock.patch.object(keeper, "_turn", turn):
            keeper._wait(lambda: False, _DEADLINE_S)
            self.assertEqual(turns, [])
            keeper._wait(lambda: False, _DEADLINE_S, signals=2)
        self.assertEqual(len(turns), 3)  # After 1.2 s.


class SignalsTest(unittest.TestCase):
    def test_a_repeat_does_not_count(self) -> None:
        signals = Signals()
        for number, now_s, counts in (
            (signal.SIGTERM, 7.0, True),
            (signal.SIGTERM, 7.0, False),
            (signal.SIGINT, 7.9, False),
            (signal.SIGINT, 8.1, True),
            (signal.SIGINT, 9.0, False),
            (signal.SIGINT, 9.2, True),
        ):
            self.assertIs(signals.add(number, now_s), counts, now_s)
        self.assertEqual((signals.first, signals.count), (signal.SIGTERM, 3))


class WorkingDirectoryTest(_Test):
    def test_daemons_run_where_the_rank_does(self) -> None:
        own = self.directory / "own"
        own.mkdir()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(own)
        place = Place("a launcher", "job", "node", 0, 1, 0, 1)
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self.directory)}
        with mock.patch.object(_programs, "tool", return_value="../tool"):
            attachment = join.attach(place, environment, _DEADLINE_S)
        self.let_daemons_end()
        attachment.leave()
        self.assertEqual(self.log()[0].split()[2], str(own))
        self.wait_for(lambda: not list(places.base(environment).iterdir()))

    def test_a_directory_that_is_gone(self) -> None:
        gone = self.directory / "gone"
        gone.mkdir()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(gone)
        gone.rmdir()
        self.assertEqual(join._working_directory(), "/")
        os.chdir("/")
        daemon = Daemon("agent", [str(self.tool), "agent"], os.environ, str(gone))
        self.assertEqual(daemon.read_ready(), {})
        daemon.process.kill()
        daemon.process.wait()
        self.assertEqual(self.log()[0].split()[2], "/")


class StderrTest(unittest.TestCase):
    def test_a_line_that_cannot_be_written_is_lost(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        closed = io.StringIO()
        closed.close()
        with (
            open("/dev/full", "wb", buffering=0) as full,
            open(writer, "wb", buffering=0) as broken,
        ):
            outputs = [io.TextIOWrapper(each, write_through=True) for each in (full, broken)]
            for stderr in (*outputs, closed, None):
                with contextlib.redirect_stderr(stderr):  # type: ignore[type-var]
                    say("lost")
        shown = io.StringIO()
        with contextlib.redirect_stderr(shown):
            say("heard")
        self.assertEqual(shown.getvalue(), "talweg: heard\n")


if __name__ == "__main__":
    unittest.main()
