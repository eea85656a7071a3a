# SPDX-License-Identifier: Apache-2.0
"""Times what a rank does in a step by itself, without its waits for others: docs/elastic.md."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from talweg._client import Client

_PUSHES = ("push_pull", "push_parts", "push_places")
_WAITS = ("wait", "wait_parts", "wait_places", "barrier")
# They push, and then wait.
_EXCHANGES = ("exchange",)

_Result = TypeVar("_Result")
_Call = Callable[..., _Result]


def _call_of(connection: Any, name: str) -> _Call[Any]:
    """Returns that call of the connection, which it does not keep alive."""
    method, reference = getattr(type(connection), name), weakref.ref(connection)

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        return method(reference(), *arguments, **named)

    return call


class OwnTime:
    """The stopwatch of one client. It begins with a batch, and each push is a new reading.

    So the last reading is when the rank has pushed its last gradient. The waits of the thread that
    has the batch do not count. It stands before the connection's calls, so it costs nothing to a
    program that never asks for it.
    """

    def __init__(self, client: Client, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._thread = 0
        self._begun_ns = self._waited_ns = 0
        self._waits_since_ns: int | None = None
        self._own_ns: int | None = None
        connection: Any = client.connection
        for names, wrapped in (
            (_PUSHES, self._pushing),
            (_WAITS, self._waiting),
            (_EXCHANGES, self._exchanging),
        ):
            for name in names:
                setattr(connection, name, wrapped(_call_of(connection, name)))

    def begin(self) -> None:
        """The calling thread gets a batch."""
        self._thread = threading.get_ident()
        self._waited_ns, self._waits_since_ns, self._own_ns = 0, None, None
        self._begun_ns = self._now_ns()

    def take_ns(self) -> tuple[int | None, int]:
        """Returns how long the rank has worked from begin() to its last push, and how long begin()
        is ago. None: it has pushed nothing that this class sees.
        """
        own_ns, self._own_ns = self._own_ns, None
        return own_ns, self._now_ns() - self._begun_ns

    def _on_push(self) -> None:
        # Another thread may push while the batch's thread waits.
        waits_since_ns = self._waits_since_ns
        until_ns = self._now_ns() if waits_since_ns is None else waits_since_ns
        self._own_ns = until_ns - self._begun_ns - self._waited_ns

    def _pushing(self, call: _Call[_Result]) -> _Call[_Result]:
        @functools.wraps(call)
        def push(*arguments: Any, **named: Any) -> _Result:
            result = call(*arguments, **named)
            self._on_push()
            return result

        return push

    def _waiting(self, call: _Call[_Result]) -> _Call[_Result]:
        @functools.wraps(call)
        def wait(*arguments: Any, **named: Any) -> _Result:
            # A wait may carry on other calls, which wait as well.
            if threading.get_ident() != self._thread or self._waits_since_ns is not None:
                return call(*arguments, **named)
            self._waits_since_ns = since_ns = self._now_ns()
            try:
                return call(*arguments, **named)
            finally:
                self._waited_ns += self._now_ns() - since_ns
                self._waits_since_ns = None

        return wait

    def _exchanging(self, call: _Call[_Result]) -> _Call[_Result]:
        waiting = self._waiting(call)

        @functools.wraps(call)
        def exchange(*arguments: Any, **named: Any) -> _Result:
            self._on_push()
            return waiting(*arguments, **named)

        return exchange
