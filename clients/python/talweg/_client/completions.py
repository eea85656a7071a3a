# SPDX-License-Identifier: Apache-2.0
"""Calls that are made when rounds are over, so that no thread has to wait for each round.

The first watch() starts the first thread. While any round is watched, one thread sleeps on a
descriptor of the client (talweg_another_completion_fd) and makes the calls of rounds that are over.
These calls do not block. Calls that may block, because a program has chained them to a future, are
made by other threads. These threads are kept: as many as have been busy at once.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable

from talweg._library import native
from talweg.errors import TalwegError

_Call = Callable[[], None]


def _no_more() -> None:
    """Stands in the queue for the end of a thread."""


class Completions:
    """The threads of one client."""

    def __init__(self, connection: native.Connection) -> None:
        self._connection = connection
        self._changed = threading.Condition()
        self._watched: dict[int, _Call] = {}
        self._ready: deque[_Call] = deque()
        self._tags = 0
        self._polls = False  # A thread sleeps on the descriptor.
        self._idle = 0
        self._coming = 0  # Threads that were started or woken, and do not run yet.
        self._ends = False
        self._threads: set[threading.Thread] = set()
        self._fd = -1
        self._poller: select.poll | None = None

    def watch(self, tensor: int, round_: int, call: _Call) -> bool:
        """Has a thread make `call` when the pushed round is over, that is when it can be taken
        without waiting for other ranks. `call` must not block.

        Returns False if the round is not watched: there is no descriptor, or the client's health
        has ended. In the second case a wait for the round raises why.
        """
        with self._changed:
            if self._poller is None:
                try:
                    self._fd = self._connection.completion_fd()
                except TalwegError:
                    return False
                self._poller = select.poll()
                self._poller.register(self._fd, select.POLLIN)
            self._tags += 1
            tag = self._tags
            self._watched[tag] = call
        try:
            self._connection.watch(self._fd, tensor, round_, tag)
        except TalwegError:
            with self._changed:
                # True if the thread at the descriptor has found that before, and makes the call.
                return self._watched.pop(tag, None) is None
        with self._changed:
            self._call_threads()
        return True

    def call(self, call: _Call) -> None:
        """Has another thread make `call`, which may block there."""
        with self._changed:
            self._ready.append(call)
            self._call_threads()

    def end(self, wait_s: float = 0.0) -> None:
        """Ends the threads when they have nothing left to call, because the connection is over.

        Waits at most `wait_s` seconds for them. The interpreter must not end while a thread frees
        objects that a call held: if that is a torch object, the process aborts.
        """
        with self._changed:
            self._ends, self._idle = True, 0
            self._changed.notify_all()
            threads = self._threads - {threading.current_thread()}
        end = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _call_threads(self) -> None:
        """Wakes or starts threads: one for each ready call, and one to sleep on the descriptor."""
        wanted = len(self._ready) + (1 if self._watched and not self._polls else 0)
        while self._coming < wanted:
            self._coming += 1
            if self._idle > 0:
                self._idle -= 1
                self._changed.notify()
            else:
                thread = threading.Thread(target=self._run, name="talweg-completions", daemon=True)
                self._threads.add(thread)
                thread.start()

    def _run(self) -> None:
        with self._changed:
            self._coming -= 1
            call = self._next()
        while call is not _no_more:
            if call is None:
                call = self._tell()
            else:
                call()
                call = None  # A thread that waits keeps no reference to a call.
                with self._changed:
                    call = self._next()
        with self._changed:
            self._threads.discard(threading.current_thread())

    def _next(self) -> _Call | None:
        """Waits for work, and returns this thread's next call. None: the thread goes to the
        descriptor.

        _no_more: the thread ends. The lock is held from when a thread counts as free until it has
        its work. Otherwise another thread would be started for the same work in between.
        """
        while not self._ready and (self._polls or not self._watched):
            if self._ends:
                return _no_more
            self._idle += 1
            self._changed.wait()
            if self._ends and not self._ready:
                return _no_more
            self._coming -= 1
        if self._ready:
            return self._ready.popleft()
        self._polls = True
        return None

    def _tell(self) -> _Call | None:
        """Makes the calls of rounds until no round is watched; returns this thread's next call."""
        while True:
            self._make(self._poll())
            with self._changed:
                if not self._watched:
                    self._polls = False
                    return self._next()

    @staticmethod
    def _make(calls: list[_Call]) -> None:
        while calls:
            calls.pop(0)()

    def _poll(self) -> list[_Call]:
        """Sleeps until a round is over; returns the calls to make."""
        assert self._poller is not None
        while True:
            self._poller.poll()
            try:
                tags = self._connection.completed(self._fd)
            except TalwegError:
                with self._changed:
                    calls = list(self._watched.values())
                    self._watched.clear()
                    return calls
            with self._changed:
                calls = [self._watched.pop(tag) for tag in tags if tag in self._watched]
            if calls:
                return calls
