# SPDX-License-Identifier: Apache-2.0
"""Runs programs/outlive.py, whose agents tests kill, for tests of launchers."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import job
import rank_logs
from launcher_site import PROGRAMS, SiteTest


class OutlivingTest(SiteTest):
    """A test with one job. The ranks' lines are in files of a directory."""

    def setUp(self) -> None:
        super().setUp()
        self.told = self.directory / "told"
        self.told.mkdir()
        self.program = [sys.executable, "-P", str(PROGRAMS / "outlive.py"), str(self.told)]

    def said(self) -> dict[int, list[str]]:
        return rank_logs.said(self.told)

    def wait_for(self, what: str, found: Callable[[], bool]) -> None:
        end = time.monotonic() + job.TIMEOUT_S
        while not found():
            if time.monotonic() > end:
                self.fail(f"not {what}: {[lines[-3:] for lines in self.said().values()]}")
            time.sleep(0.02)

    def go_on(self, ranks: int) -> None:
        """Returns when so many ranks have ended ten more steps."""
        self.wait_for(f"{ranks} ranks go on", rank_logs.going_on(self.told, ranks))

    def agents(self) -> list[int]:
        return [pid for pid, line in self.processes().items() if "talweg-agent" in line]

    def kill_agent(self, pid: int, number: int = signal.SIGKILL) -> None:
        os.kill(pid, number)
        self.wait_for("another agent", lambda: pid not in self.agents() and bool(self.agents()))

    def stop(self) -> None:
        """Tells the ranks to end."""
        (self.told / "stop").touch()

    def require_equal_ends(self, ranks: int) -> None:
        ends = [lines[-1] for lines in self.said().values()]
        self.assertEqual(len(ends), ranks)
        self.assertEqual(len(set(ends)), 1, ends)
        self.assertRegex(ends[0], "^weights ")
