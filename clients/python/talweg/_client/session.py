# SPDX-License-Identifier: Apache-2.0
"""What a compatible surface keeps for one life of the client: handles that are ints, and names."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable
from typing import Any, Protocol

from talweg._client import process
from talweg._client.client import Client
from talweg.errors import InvalidArgument


class Pending(Protocol):
    """An operation that is not over."""

    def poll(self) -> bool: ...
    def wait(self) -> Any: ...


class Done:
    """An operation that was over when it began."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def poll(self) -> bool:
        return True

    def wait(self) -> Any:
        return self._result


class Failed:
    """An operation that could not begin. synchronize() raises the error, as in the other system."""

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

    @classmethod
    def of(cls, starts: Iterable[Pending]) -> Several:
        """Returns the group of the operations that iteration over `starts` begins. If one cannot
        begin, this waits for those before it, whose names would stay in use, and raises.
        """
        members: list[Pending] = []
        try:
            for each in starts:
                members.append(each)
        except Exception:
            with contextlib.suppress(Exception):
                cls(members).wait()
            raise
        return cls(members)

    def poll(self) -> bool:
        return all(member.poll() for member in self._members)

    def wait(self) -> tuple[Any, ...]:
        # Takes all operations, also after a failure: a round that stays open blocks the next push.
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
    """The session of one client. Any thread may call any method."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)  # A program may take 0 for none.
        self._open: dict[int, Pending] = {}
        # The newest handle of each name that has one.
        self._newest: dict[str, int] = {}
        self._asked: set[int] = set()  # Handles that is_first_question() was asked about.
        self._held: set[str] = set()

    def add(self, pending: Pending, name: str | None = None) -> int:
        """Returns the handle of a new operation. finish() finds it by `name`."""
        with self._lock:
            handle = next(self._numbers)
            self._open[handle] = pending
            if name is not None:
                self._newest[name] = handle
            return handle

    def finish(self, name: str) -> None:
        """Waits for the open operation of that name. Its handle stays valid."""
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
        """Takes the operation out of the session: from now on its handle is invalid."""
        with self._lock:
            self._asked.discard(handle)
            return self._open.pop(handle, None)

    def drop_handles(self) -> None:
        """Makes every handle that was given out invalid, and every name free."""
        with self._lock:
            self._open.clear()
            self._newest.clear()
            self._asked.clear()
            self._held.clear()

    def is_first_question(self, handle: int) -> bool:
        """Whether this is the first question about this handle."""
        with self._lock:
            is_first = handle not in self._asked
            self._asked.add(handle)
            return is_first

    @property
    def has_open(self) -> bool:
        """Whether an operation's handle was given out and not taken."""
        return bool(self._open)

    def hold(self, name: str) -> None:
        """Holds the name until release(). Raises InvalidArgument if it is held already."""
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
    """Returns the session of the current client. Raises NotInitialized before init()."""
    client = process.current()
    session = _sessions.get(id(client))
    if session is None or session.client is not client:
        _sessions.clear()
        session = _sessions[id(client)] = Session(client)
    return session


def forget(_: Client | None = None) -> None:
    """Forgets all handles and names, because the client is another one, or there is none."""
    _sessions.clear()


def forget_handles() -> None:
    """Makes all handles that were given out invalid. The client's names stay."""
    for session in list(_sessions.values()):
        session.drop_handles()


process.call_when_replaced(forget)
