# SPDX-License-Identifier: Apache-2.0
"""Takes rounds on a thread of its own, each soon after it is there, whatever their order.

For frameworks whose own engine waits for results: a round that is late holds up no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from talweg._client import Client, Handle
from talweg.errors import Timeout

# How long it waits for one round before it looks at the others: shorter after one has come.
_WAIT_S_MIN = 0.0005
_WAIT_S_MAX = 0.02


@dataclass
class _Open:
    handle: Handle
    priority: int
    done: Callable[[Exception | None], None]


class Collector:
    """Any thread may call add()."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._open: list[_Open] = []
        self._is_closed = False
        client.call_when_closed(self._close)
        threading.Thread(target=self._run, name="talweg-collector", daemon=True).start()

    def add(self, handle: Handle, priority: int, done: Callable[[Exception | None], None]) -> None:
        """Has `done` called when the round is over, with what it has failed with, if it has.

        By then its result stands where the handle says. `done` is called on the collector's thread
        and must not wait.
        """
        with self._changed:
            self._open.append(_Open(handle, priority, done))
            self._changed.notify()

    def _close(self) -> None:
        """The client is closed: what is open fails at once, and the thread ends."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        wait_s = _WAIT_S_MIN
        while True:
            with self._changed:
                while not self._open and not self._is_closed:
                    self._changed.wait()
                if not self._open:
                    return
                open_ = list(self._open)
            there = [each for each in open_ if self._is_there(each.handle)]
            for each in there:
                self._take(each, None)
            if there:
                wait_s = _WAIT_S_MIN
                continue
            # The most urgent one is likely to be the next.
            first = max(open_, key=lambda each: each.priority)
            if not self._take(first, wait_s):
                wait_s = min(2 * wait_s, _WAIT_S_MAX)

    def _is_there(self, handle: Handle) -> bool:
        try:
            return self._client.poll(handle)
        except Exception:  # Taking it tells why.
            return True

    def _take(self, each: _Open, timeout_s: float | None) -> bool:
        """Whether the round is over."""
        failure: Exception | None = None
        try:
            self._client.synchronize(each.handle, timeout_s)
        except Timeout:
            return False
        except Exception as error:
            failure = error
        with self._changed:
            self._open.remove(each)
        each.done(failure)
        return True
