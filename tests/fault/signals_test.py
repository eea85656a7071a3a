# SPDX-License-Identifier: Apache-2.0
"""Tests SIGTERM at any moment of a daemon's life, and any number of times."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import unittest
from collections.abc import Sequence
from pathlib import Path

from cluster import DEADLINE_S, RUNFILES, TOOL, Cluster, Job


class SignalsTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="talweg.", dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.socket = self.directory / "agent.sock"
        # None of these daemons waits for another process.
        self.lines = {
            "scheduler": ["--listen=127.0.0.1:0", f"--store_path={self.directory}/store"],
            "aggregator": ["--scheduler=127.0.0.1:1", "--name=a"],
            "agent": ["--standalone", f"--socket_path={self.socket}"],
        }

    def _start(
        self, service: str, shell: Sequence[str] = ()
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Starts a daemon. `shell` is the command that starts it, if any."""
        ready = self.directory / f"{service}.ready"
        ready.unlink(missing_ok=True)
        binary = RUNFILES / "services" / service / f"talweg-{service}"
        process = subprocess.Popen(
            [*shell, str(binary), f"--ready_file={ready}", "--log_level=off", *self.lines[service]],
            stdin=subprocess.DEVNULL,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, ready

    def test_while_it_starts(self) -> None:
        # The signals come before the first lines, during the start, and later.
        for service in self.lines:
            for wait_s in (0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3):
                process, ready = self._start(service)
                time.sleep(wait_s)
                process.terminate()
                status = process.wait(DEADLINE_S)
                with self.subTest(service, wait_s=wait_s):
                    # Before main() the signal ends the process, or a library of libfabric does so
                    # with status 1. That library handles signals from its loading on until main().
                    self.assertIn(status, (0, 1, -signal.SIGTERM))
                    if ready.exists():
                        self.assertEqual(status, 0)
                    self.assertFalse(self.socket.exists())

    def test_until_it_is_gone(self) -> None:
        for service in self.lines:
            process, ready = self._start(service)
            while not ready.exists():
                self.assertIsNone(process.poll())
                os.sched_yield()
            # Signals come all the time until it has ended.
            while process.poll() is None:
                process.terminate()
            with self.subTest(service):
                self.assertEqual(process.returncode, 0)
                self.assertFalse(self.socket.exists())

    def test_with_certificates(self) -> None:
        """The thread that reads them anew takes no signal. SIGHUP ends nothing."""
        roles = {"scheduler": "scheduler", "aggregator": "aggregator:a", "agent": "node:default"}
        pki = self.directory / "pki"
        subprocess.run([TOOL, "certs", pki, *roles.values()], stdout=subprocess.DEVNULL, check=True)
        for service, role in roles.items():
            self.lines[service].append(f"--tls_dir={pki / role.replace(':', '-')}")
            process, ready = self._start(service)
            while not ready.exists():
                self.assertIsNone(process.poll())
                os.sched_yield()
            for number in (signal.SIGHUP, signal.SIGTERM):
                process.send_signal(number)
            with self.subTest(service):
                self.assertEqual(process.wait(DEADLINE_S), 0)
                self.assertFalse(self.socket.exists())

    def test_standard_descriptors_that_are_closed(self) -> None:
        """Files that the daemon opens do not get the numbers of closed standard descriptors."""
        if os.environ.get("TALWEG_SANITIZER"):
            self.skipTest("sanitizers' runtimes allow no code before theirs")
        for service in self.lines:
            shell = ("/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
            process, ready = self._start(service, shell)
            while not ready.exists():
                self.assertIsNone(process.poll())
                os.sched_yield()
            places = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
            process.terminate()
            with self.subTest(service):
                self.assertEqual(places, {"/dev/null"})
                self.assertEqual(process.wait(DEADLINE_S), 0)

    def test_a_crash_is_one_for_whoever_waits(self) -> None:
        if os.environ.get("TALWEG_SANITIZER"):
            self.skipTest("sanitizers report crashes in their own way")
        for service in self.lines:
            process, ready = self._start(service)
            while not ready.exists():
                self.assertIsNone(process.poll())
                os.sched_yield()
            process.send_signal(signal.SIGSEGV)
            with self.subTest(service):
                self.assertEqual(process.wait(DEADLINE_S), -signal.SIGSEGV)
            self.socket.unlink(missing_ok=True)

    def test_an_aggregator_says_that_it_leaves(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(1, 1), aggregator_options=["--drain_timeout_ms=500"])
            leaver = job.aggregators[0]
            leaver.process.terminate()
            for rank in job.all_ranks():
                line = rank.wait_for("error ")
                self.assertRegex(line, "error JobFailed: .*aggregator a0 .*SIGTERM")
            self.assertEqual(leaver.process.wait(DEADLINE_S), 0)

    def test_an_agent_says_that_it_leaves(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(2, 1), agent_options=["--drain_timeout_ms=500"])
            job.agents[0].process.terminate()
            for rank in job.all_ranks():
                self.assertRegex(rank.wait_for("error "), "error JobFailed: .*node 0")


if __name__ == "__main__":
    unittest.main()
