# SPDX-License-Identifier: Apache-2.0
"""Hosts that a launcher reaches by ssh: a program of the test stands in for ssh."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import socket
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from talweg._node import hosts, hosts_run, ranks
from talweg._node.beats import Beats
from talweg._node.host_set import Action, JobState
from talweg._node.listed_hosts import Host
from talweg._node.signals import Signals

# It ends a hang.
_DEADLINE_S = 120.0

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


class _Host:
    """A host that counts beats."""

    def __init__(self) -> None:
        self.beats = 0
        self.has_heard = threading.Semaphore(0)

    def beat(self) -> None:
        self.beats += 1
        self.has_heard.release()


class BeatsTest(unittest.TestCase):
    def test_they_go_on_while_the_launcher_waits(self) -> None:
        beats = Beats(0.01)
        self.addCleanup(beats.end)
        here, gone = _Host(), _Host()
        beats.add(here)
        beats.add(gone)
        for _ in range(3):
            for host in (here, gone):
                self.assertTrue(host.has_heard.acquire(timeout=_DEADLINE_S))
        beats.remove(gone)
        heard = gone.beats
        for _ in range(here.beats, here.beats + 3):
            self.assertTrue(here.has_heard.acquire(timeout=_DEADLINE_S))
        self.assertEqual(gone.beats, heard)

    def test_a_beat_does_not_cut_a_text_in_two(self) -> None:
        """A host that reads slowly gets all of a text, and beats only between texts."""
        reads_slowly = "sleep 1; head -n 4 >{0}; : >{0}.done; cat >/dev/null"
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            heard = Path(directory, "heard")
            python = Path(directory, "python")  # It stands in for the host's ranks.py.
            python.write_text("#!/bin/sh\n" + reads_slowly.format(heard))
            python.chmod(0o755)
            on_host = hosts.OnHost("localhost", {"task": "x" * 200_000}, hosts.Ssh(), str(python))
            self.addCleanup(on_host.kill)
            beats = Beats(0.001)
            beats.add(on_host)
            on_host.begin("y" * 200_000)
            end = time.monotonic() + _DEADLINE_S
            while not Path(f"{heard}.done").exists() and time.monotonic() < end:
                on_host.send()
                time.sleep(0.001)
            beats.end()
            lines = heard.read_text().split("\n")
            on_host.ask_to_end()
            self.assertEqual(on_host.failure(), "")
        self.assertEqual(json.loads(lines[0]), {"task": "x" * 200_000})
        self.assertEqual(lines[1], "b" + "y" * 200_000)
        self.assertEqual(lines[2:], ["", "", ""])  # Two beats, and the end of the file.


class LauncherTest(unittest.TestCase):
    def setUp(self) -> None:
        self.run_ = hosts_run.HostsRun.__new__(hosts_run.HostsRun)
        self.run_._signals, self.run_._untaken = Signals(), []
        self.node = mock.Mock()
        self.run_._nodes = {"a": self.node}
        self.run_._job = mock.Mock(state=JobState.RUNNING)
        self.run_._job.end.side_effect = self._end

    def _end(self, *_: object) -> list[Action]:
        self.run_._job.state = JobState.ENDING
        return []

    def _signal(self, now_s: float) -> None:
        with mock.patch.object(hosts_run.time, "monotonic", return_value=now_s):
            self.run_._on_signal(signal.SIGTERM, None)
        self.run_._take_signals()

    def test_a_second_signal_kills_and_a_repeat_does_not(self) -> None:
        for now_s in (5.0, 5.1, 5.9):
            self._signal(now_s)
            self.node.on_host.kill.assert_not_called()
        self.assertIs(self.run_._job.state, JobState.ENDING)
        self._signal(6.5)
        self.node.on_host.kill.assert_called_once()

    def test_a_launcher_of_hosts_that_stay_is_interrupted_once(self) -> None:
        with hosts.interruptible():
            with self.assertRaises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            with mock.patch.object(hosts.time, "monotonic", lambda: 0.0):  # Time has not passed.
                signal.raise_signal(signal.SIGTERM)


class NewsTest(unittest.TestCase):
    def test_a_full_disk_ends_no_rank(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            with mock.patch.object(ranks.os, "set_blocking"):  # This process keeps its stdout.
                started = ranks._Ranks(ranks.Task([], "", {}, {}), Path(directory))
            self.addCleanup(started._selector.close)
            self.addCleanup(started._selector_when_full.close)
            news = Path(directory, ranks.NEWS_FILE)
            news.symlink_to("/dev/full")
            started._hear(ranks.NEWS + b"1\n")
            news.unlink()
            started._hear(ranks.NEWS + b"2\n")
            self.assertRegex(news.read_text(), r"^\d+\.\d{6} 2\n$")


class NamesTest(unittest.TestCase):
    def test_a_name_server_is_asked_once_for_this_hosts_name(self) -> None:
        hosts._full_name.cache_clear()
        self.addCleanup(hosts._full_name.cache_clear)
        with mock.patch.object(socket, "getfqdn", return_value="own.example") as asked:
            for own in ("localhost", "127.0.0.1", socket.gethostname()):
                self.assertTrue(hosts.is_here(own))
            asked.assert_not_called()
            for _ in range(2):
                self.assertTrue(hosts.is_here("own.example"))
                self.assertFalse(hosts.is_here("other.example"))
            asked.assert_called_once()


if __name__ == "__main__":
    unittest.main()
