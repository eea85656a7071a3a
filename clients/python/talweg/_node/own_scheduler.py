# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a run on hosts that come and go. It runs on the launcher's host."""

from __future__ import annotations

import os
import socket
from collections import deque
from pathlib import Path

from talweg import _programs
from talweg._node.daemons import Daemon
from talweg.errors import TalwegError

# How often it is started again within how many seconds.
_STARTS = 10
_WINDOW_S = 60.0
# How long it may take to end.
_END_S = 10.0


class OwnScheduler:
    """The job's scheduler. If it ends, it is started again at the same address."""

    def __init__(self, directory: Path, log_level: list[str]) -> None:
        self._directory = directory
        self._log_level = log_level
        self._listen = "[::]:0" if socket.has_dualstack_ipv6() else "0.0.0.0:0"
        self._starts: deque[float] = deque()
        self.port = 0
        self.address = ""
        self._daemon = self._start()

    def _start(self) -> Daemon:
        line = [
            _programs.tool(),
            "scheduler",
            f"--listen={self._listen}",
            f"--store_path={self._directory}/scheduler.db",
            f"--secret_file={self._directory}/secret",
            "--insecure",  # There is no certificate. The job's secret says who may join.
            *self._log_level,
        ]
        return Daemon("talweg-scheduler", line, os.environ)

    def serve(self) -> None:
        """Returns when the scheduler serves. Raises TalwegError if it does not start."""
        addresses = self._daemon.read_ready()
        if addresses is None:
            raise TalwegError(f"{self._daemon.how_it_ended()}: see above why")
        # The address by which others reach it. A restart binds to the same port.
        self.address = addresses["listen"]
        self.port = int(self.address.rpartition(":")[2])
        self._listen = f"{self._listen.rpartition(':')[0]}:{self.port}"

    def check(self, now_s: float) -> str:
        """Starts the scheduler again if it has ended. Returns a text that says so, or an empty one.

        Raises TalwegError if it has ended too often.
        """
        if self._daemon.process.poll() is None:
            return ""
        text = self._daemon.how_it_ended()
        self._starts.append(now_s)
        while now_s - self._starts[0] > _WINDOW_S:
            self._starts.popleft()
        if len(self._starts) > _STARTS:
            raise TalwegError(f"{text}, for the {len(self._starts)}th time in a minute")
        self._daemon = self._start()
        self.serve()
        return f"{text}; it is started again, steps go on"

    def end(self) -> None:
        self._daemon.ask_to_end()
        self._daemon.end(_END_S)
