# SPDX-License-Identifier: Apache-2.0
"""The daemons of a node: children of the keeper that die with it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Daemon:
    """One daemon. `ready_fd` is readable when the daemon serves, or has ended before that.

    It runs in `directory`, where it finds files that its options name by relative paths; in this
    process's directory if that one is gone.
    """

    def __init__(
        self, name: str, line: list[str], environment: Mapping[str, str], directory: str = "."
    ) -> None:
        self.name = name

        def begin() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.chdir(directory)

        self.ready_fd, writer = os.pipe()
        try:
            self.process = subprocess.Popen(
                [*line, f"--ready_fd={writer}"],
                env=environment,
                stdin=subprocess.DEVNULL,
                # A daemon's output goes to stderr, because it is no output of the program.
                stdout=2,
                pass_fds=[writer],
                preexec_fn=begin,
            )
        finally:
            os.close(writer)

    def read_ready(self) -> dict[str, str] | None:
        """Returns the daemon's addresses by their names. None if it has ended, or is about to."""
        text = b""
        while part := os.read(self.ready_fd, 65536):
            text += part
        os.close(self.ready_fd)
        self.ready_fd = -1
        return dict(json.loads(text)["addresses"]) if text else None

    def ask_to_end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()

    def end(self, grace_s: float) -> None:
        """Returns when the daemon has ended. Kills it if it has not within `grace_s`."""
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def how_it_ended(self) -> str:
        status = self.process.wait()
        if status < 0:
            return f"{self.name} was killed by signal {-status}"
        return f"{self.name} has ended with exit status {status}"
