# SPDX-License-Identifier: Apache-2.0
"""Where ranks wait, for the text of a timeout: which call, and at which line of the program."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

from talweg._client import Client

# A rank tells of a call that it has waited for so long, in seconds, or for half of its time limit.
TELL_S = 1.0
# How long a timeout waits for the store.
_ASK_S = 1.0


class Whereabouts:
    """What the ranks of a job tell each other, through torch's store, of the calls they wait in.

    A rank that waits elsewhere takes part in no round, so no round can tell of it. The store may be
    gone, or its host. So one thread speaks with it, which the first long wait starts, and nobody
    waits for that thread but a timeout, for a moment. Any thread may call any method.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._store: Any = None
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._has_thread = False
        # A call that has been told has timed out, so this rank goes on elsewhere.
        self.is_stale = False

    def use(self, store: Any) -> None:
        """Speaks through this store, which is that of a group of all ranks, until it is let go.

        Later groups of all ranks are made while some ranks still wait in a call.
        """
        if self._store is None:
            self._store, self.is_stale = store, False

    def let_go(self, store: Any) -> None:
        """The group of this store is destroyed."""
        if self._store is store:
            self._store = None

    def tell(self, text: str) -> None:
        """Tells where this rank waits."""
        self.is_stale = False
        self._set(text)

    def tell_end(self) -> None:
        """Tells that it waits there no more."""
        self.is_stale = False
        self._set("")

    def of(self, ranks: Iterable[int]) -> dict[int, str]:
        """Returns where those of the ranks wait that have told it."""
        store, asked = self._store, [rank for rank in ranks if rank != self._client.rank]
        found: futures.Future[dict[int, str]] = futures.Future()

        def ask() -> None:
            told = {}
            for rank in asked:
                if store.check([_key(rank)]):
                    told[rank] = store.get(_key(rank)).decode()
            found.set_result({rank: text for rank, text in told.items() if text})

        if store is None:
            return {}
        self._call(ask)
        try:
            return found.result(_ASK_S)
        except futures.TimeoutError:
            return {}

    def _set(self, text: str) -> None:
        store, key = self._store, _key(self._client.rank)
        if store is not None:
            self._call(lambda: store.set(key, text))

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        with self._lock:
            starts, self._has_thread = not self._has_thread, True
        if starts:
            threading.Thread(target=self._run, name="talweg-whereabouts", daemon=True).start()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            with contextlib.suppress(Exception):  # The store is gone: nobody hears anything.
                call()
            del call


def _key(rank: int) -> str:
    return f"talweg/waits/{rank}"
