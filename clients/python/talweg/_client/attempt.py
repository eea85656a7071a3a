# SPDX-License-Identifier: Apache-2.0
"""One attempt to get a client, which can be given up while it waits."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent import futures

from talweg._client.client import Client
from talweg.errors import Closed


class Attempt:
    """Calls make() on another thread. The library waits for the whole job in one call, because the
    rank's place in the job goes with the connection, and this thread would not hear Ctrl-C in that
    call.

        waiting --the client is there, or make() has failed--> over
           |
           +--give_up(), or an exception of a signal handler--> given up: the client, if it still
                                                                comes, is closed
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        self._connected: futures.Future[Client] = futures.Future()
        # A signal handler may call put() on the thread that it has interrupted in get().
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.is_given_up = False
        threading.Thread(target=self._run, args=(make,), name="talweg-connect", daemon=True).start()

    def _run(self, make: Callable[[], Client]) -> None:
        try:
            client = make()
        except BaseException as error:
            with contextlib.suppress(futures.InvalidStateError):
                self._connected.set_exception(error)
        else:
            try:
                self._connected.set_result(client)
            except futures.InvalidStateError:  # Nobody waits for it any more.
                client.close()
        self._news.put(None)

    def give_up(self) -> None:
        """Has wait() raise Closed. Any thread may call it, and so may a signal handler."""
        self.is_given_up = True
        self._news.put(None)

    def wait(self) -> Client:
        """Returns the client. Raises what make() has raised, or Closed after give_up()."""
        try:
            self._news.get()
            self.check()
            return self._connected.result()
        except BaseException:
            # The client may have come just before.
            if not self._connected.cancel() and self._connected.exception() is None:
                self._connected.result().close()
            raise

    def check(self) -> None:
        """Raises Closed after give_up()."""
        if self.is_given_up:
            raise Closed("shutdown() was called while init() or rejoin() waited: call init() again")
