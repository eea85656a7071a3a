# SPDX-License-Identifier: Apache-2.0
"""Calls that are made at a given time, unless they are cancelled before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_Call = Callable[[], None]


class Deadlines:
    """The deadlines of one client. One thread sleeps until the first deadline; the first call_at()
    starts it. `call_elsewhere` makes a call on another thread.
    """

    def __init__(self, call_elsewhere: Callable[[_Call], None]) -> None:
        self._call_elsewhere = call_elsewhere
        self._changed = threading.Condition()
        self._calls: dict[int, tuple[float, _Call]] = {}
        self._count = 0
        self._wakes_at = float("inf")
        self._ends = False
        self._thread: threading.Thread | None = None

    def call_at(self, end: float, call: _Call) -> int:
        """Has `call` made when time.monotonic() reaches `end`. Returns the number for forget()."""
        with self._changed:
            self._count += 1
            self._calls[self._count] = (end, call)
            if self._thread is None and not self._ends:
                self._thread = threading.Thread(
                    target=self._run, name="talweg-deadlines", daemon=True
                )
                self._thread.start()
            elif end < self._wakes_at:  # forget() wakes nobody: the thread sleeps again.
                self._changed.notify()
            return self._count

    def forget(self, number: int) -> None:
        """Cancels a call that has not been made yet."""
        with self._changed:
            self._calls.pop(number, None)

    def end(self) -> None:
        """Cancels all calls, and waits until the thread has ended: the connection is over."""
        with self._changed:
            self._ends = True
            self._calls.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._ends:
                now = time.monotonic()
                for number in [at for at, (end, _) in self._calls.items() if end <= now]:
                    self._call_elsewhere(self._calls.pop(number)[1])
                self._wakes_at = min((end for end, _ in self._calls.values()), default=float("inf"))
                left = self._wakes_at - now
                self._changed.wait(min(left, threading.TIMEOUT_MAX) if self._calls else None)
