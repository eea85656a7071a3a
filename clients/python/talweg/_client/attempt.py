# SPDX-License-Identifier: Apache-2.0
"""One attempt to get a client, which can be given up while it waits."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from talweg._client.client import Client
from talweg.errors import Closed, Timeout

_SLICE_S = 3600.0


class Attempt:
    """Calls make() on another thread. The library waits for the whole job in one call, because the
    rank's place in the job goes with the connection, and this thread would not hear Ctrl-C in that
    call.

        waiting --make() ends--> over
         |   ^
         |   +--resume()---------+
         v                       |
        given up ----------------+
         |
         +--make() ends--> over: its client is closed

    give_up() and an exception of a signal handler give it up. The call goes on then, and keeps the
    rank's place: a second attempt would find that taken.
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        # A signal handler may need the lock on the thread that holds it.
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._failure: BaseException | None = None
        self._is_over = False
        self.is_given_up = False
        # A signal handler may call put() on the thread that it has interrupted in get().
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        # wait() starts it. Who gives the attempt up has to know of it before make() is called.
        self._thread: threading.Thread | None = threading.Thread(
            target=self._run, args=(make,), name="talweg-connect", daemon=True
        )

    def _run(self, make: Callable[[], Client]) -> None:
        client, failure = None, None
        try:
            client = make()
        except BaseException as error:
            failure = error
        with self._lock:
            if not self.is_given_up:
                self._client, self._failure = client, failure
                client = None
            self._is_over = True
        if client is not None:  # Nobody waits for it any more.
            client.close()
        self._news.put(None)

    def give_up(self) -> None:
        """Has wait() raise Closed. Any thread may call it, and so may a signal handler."""
        self.is_given_up = True
        self._news.put(None)

    def resume(self) -> bool:
        """Returns whether wait() may be called again. It may not if make() has ended."""
        with self._lock:
            if not self._is_over:
                self.is_given_up = False
            return not self._is_over

    def wait(self, timeout_s: float | None = None) -> Client:
        """Returns the client. Raises what make() has raised, Closed after give_up(), and Timeout
        if make() has not ended in time.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.start()
            while not self._is_over and not self.is_given_up:
                left_s = _SLICE_S if end is None else end - time.monotonic()
                if left_s <= 0:
                    raise Timeout(f"the job is not complete within {timeout_s:g} s")
                with contextlib.suppress(queue.Empty):
                    self._news.get(timeout=min(left_s, _SLICE_S))
            self.check()
            if self._failure is not None:
                raise self._failure
            assert self._client is not None
            client, self._client = self._client, None
            return client
        except BaseException:
            with self._lock:
                self.is_given_up = True
                unwanted, self._client, self._failure = self._client, None, None
            if unwanted is not None:  # It has come just before.
                unwanted.close()
            raise

    def check(self) -> None:
        """Raises Closed after give_up()."""
        if self.is_given_up:
            raise Closed("shutdown() was called while init() or rejoin() waited: call init() again")
