# SPDX-License-Identifier: Apache-2.0
"""What a compatible surface keeps for one life of the client: handles that are ints, and names."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Protocol

from talweg._client import process
from talweg._client.client import Client
from talweg.errors import InvalidArgument


class Pending(Protocol):
    """An operation under way."""

    def poll(self) -> bool: ...
    def wait(self) -> Any: ...


class Done:
    """One that was over when it began."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def poll(self) -> bool:
        return True

    def wait(self) -> Any:
        return self._result


class Failed:
    """One that could not begin, where the other system says so in synchronize()."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def poll(self) -> bool:
        return True

    def wait(self) -> Any:
        raise self._failure


class Several:
    """A group of operations, with one handle."""

    def __init__(self, members: list[Pending]) -> None:
        self._members = members

    def poll(self) -> bool:
        return all(member.poll() for member in self._members)

    def wait(self) -> tuple[Any, ...]:
        # All of them, also after a failure: what stays open could not be pushed again.
        failure: Exception | None = None
        results = []
        for member in self._members:
            try:
                results.append(member.wait())
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return tuple(results)


class Session:
    """Any thread may call any method."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open: dict[int, Pending] = {}
        # The newest handle of each name that has one.
        self._newest: dict[str, int] = {}
        self._asked: set[int] = set()  # Their holders have asked once.
        self._held: set[str] = set()

    def add(self, pending: Pending, name: str | None = None) -> int:
        """The operation's handle; `name` is for finish()."""
        with self._lock:
            handle = next(self._numbers)
            self._open[handle] = pending
            if name is not None:
                self._newest[name] = handle
            return handle

    def finish(self, name: str) -> None:
        """Waits for the operation of that name that is under way. Its handle stays good."""
        handle = self._newest.get(name, -1)
        pending = self._open.get(handle)
        if pending is None:
            return
        over: Pending
        try:
            over = Done(pending.wait())
        except Exception as failure:
            over = Failed(failure)
        with self._lock:
            if handle in self._open:
                self._open[handle] = over

    def find(self, handle: int) -> Pending | None:
        return self._open.get(handle)

    def take(self, handle: int) -> Pending | None:
        """The operation of a handle that is good for nothing from now on."""
        with self._lock:
            self._asked.discard(handle)
            return self._open.pop(handle, None)

    def drop_handles(self) -> None:
        """Every handle that was given out is good for nothing from now on; names are free again."""
        with self._lock:
            self._open.clear()
            self._newest.clear()
            self._asked.clear()
            self._held.clear()

    def is_first_question(self, handle: int) -> bool:
        """Whether it was not asked about this handle before."""
        with self._lock:
            is_first = handle not in self._asked
            self._asked.add(handle)
            return is_first

    @property
    def has_open(self) -> bool:
        """Whether the handle of an operation was given out and not taken."""
        return bool(self._open)

    def hold(self, name: str) -> None:
        """InvalidArgument while an operation of that name is under way; release() ends it."""
        with self._lock:
            if name in self._held:
                raise InvalidArgument(
                    f"an operation named '{name}' is open: synchronize it first, or give this one "
                    "another name"
                )
            self._held.add(name)

    def release(self, name: str) -> None:
        with self._lock:
            self._held.discard(name)


_sessions: dict[int, Session] = {}


def current() -> Session:
    """The present client's; NotInitialized before init()."""
    client = process.current()
    session = _sessions.get(id(client))
    if session is None or session.client is not client:
        _sessions.clear()
        session = _sessions[id(client)] = Session(client)
    return session


def forget(_: Client | None = None) -> None:
    """The client is another one, or none: handles and names are worth nothing any more."""
    _sessions.clear()


def forget_handles() -> None:
    """The handles that were given out are worth nothing any more; the client's names stay."""
    for session in list(_sessions.values()):
        session.drop_handles()


process.call_when_replaced(forget)
