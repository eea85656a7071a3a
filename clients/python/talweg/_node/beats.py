# SPDX-License-Identifier: Apache-2.0
"""Tells hosts every few seconds that their launcher is there."""

from __future__ import annotations

import signal
import threading
from typing import Protocol


class _Hears(Protocol):
    def beat(self) -> None: ...


class Beats:
    """Beats on a thread of its own: the launcher's thread waits at times for a name server, or for
    the scheduler's answer, for longer than a host waits for the launcher. A launcher that is
    stopped or cut off beats no more.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._hosts: list[_Hears] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Signals go to the launcher's thread, whose select() they end.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._is_over.wait(self._every_s):
            with self._lock:
                for host in self._hosts:
                    host.beat()

    def add(self, host: _Hears) -> None:
        with self._lock:
            self._hosts.append(host)

    def remove(self, host: _Hears) -> None:
        """No beat for the host is under way when this returns."""
        with self._lock:
            self._hosts.remove(host)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
