# SPDX-License-Identifier: Apache-2.0
"""Rounds whose callers wait for them no more.

A call that blocks leaves its round when its time is over, or when it is interrupted. A program
leaves a round when it drops the handle. Other ranks have what they need of that round, but the
library pushes no further round of the tensor before that round is taken. So a round that was left
is taken without its caller, and its result is lost:

    left by a call that blocks   another thread takes it, as soon as it is over
    left by a dropped handle     the next call of its name takes it, or hvd.join()

The next call of the name waits for that if it blocks. A call that does not block raises Busy as
long as the round is under way.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from talweg.errors import Busy, TalwegError, Timeout

if TYPE_CHECKING:
    from talweg._client.client import Client
    from talweg._client.handles import Handle


@dataclass(eq=False)
class _Left:
    """A round that its caller has left."""

    handle: Handle
    over: threading.Event | None  # Set by the thread that takes the round. None if no thread does.

    @property
    def reason(self) -> str:
        if self.over is None:
            return "the handle of its last round was dropped"
        return "its last call has timed out or was interrupted"

    def wait(self, timeout_s: float | None) -> None:
        """Returns when the round is taken. Raises _Late if it is not over by then."""
        if self.over is None:
            with contextlib.suppress(TalwegError):  # The round has ended without a result.
                try:
                    self.handle.take(self.handle.client.connection, timeout_s)
                except Timeout as late:
                    raise _Late from late
        elif not self.over.wait(timeout_s):
            raise _Late


class _Late(Exception):
    """The round is still under way."""


class LeftRounds:
    """The left rounds of one client. Any thread may call any method."""

    def __init__(self) -> None:
        self._rounds: dict[str, _Left] = {}  # Keyed by the tensor's name.

    def __bool__(self) -> bool:
        return bool(self._rounds)

    def has(self, name: str) -> bool:
        """Whether the last round of that tensor was left, and is not taken yet."""
        return name in self._rounds

    def leave(self, handle: Handle) -> Callable[[Any], None]:
        """Notes that a blocking call leaves its round. Returns the function to call when it is
        taken.
        """
        over = threading.Event()
        left = self._rounds[handle.name] = _without_result(_Left(handle, over))

        def taken(_: Any) -> None:
            if self._rounds.get(handle.name) is left:
                del self._rounds[handle.name]
            over.set()

        return taken

    def drop(self, handle: Handle) -> None:
        """Notes that nobody holds the handle. Takes no lock, because destructors call it."""
        self._rounds[handle.name] = _without_result(_Left(handle, None))

    def wait_for(self, name: str, timeout_s: float | None) -> float | None:
        """Waits until no left round of that tensor remains; returns what is left of `timeout_s`.

        Raises Timeout if such a round remains after that. The waiting call has then pushed nothing.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (left := self._rounds.pop(name, None)) is not None:
            try:
                left.wait(None if end is None else max(0.0, end - time.monotonic()))
            except BaseException as failure:
                self._rounds.setdefault(name, left)
                if not isinstance(failure, _Late):
                    raise
                raise Timeout(
                    f"tensor '{name}': {left.reason}, and is not over after {timeout_s} s"
                    f"{_late(left.handle)}; this call has pushed nothing: repeat it"
                ) from None
        return None if end is None else max(0.0, end - time.monotonic())

    def take_if_over(self, name: str) -> _Left | None:
        """Takes the last round of that tensor if it was left and is over: its name may then be
        free.

        Returns the left round if it is still under way, else None.
        """
        left = self._rounds.pop(name, None)
        if left is not None:
            try:
                left.wait(0.0)
            except _Late:
                self._rounds.setdefault(name, left)
                return left
        return None

    def take_over(self, name: str, tensor: int) -> Handle | None:
        """Returns the last round of that tensor if its handle was dropped. The caller then takes
        it.
        """
        left = self._rounds.get(name)
        if left is None or left.over is not None or left.handle.tensor != tensor:
            return None
        del self._rounds[name]
        return left.handle

    def make_way(self, name: str, busy: Busy) -> None:
        """Called when the library has refused to push the tensor. Returns if the tensor's last
        round was left, is over, and is now taken. Raises Busy otherwise.
        """
        if name not in self._rounds:
            raise busy
        left = self.take_if_over(name)
        if left is not None:
            raise Busy(
                f"tensor '{name}': {left.reason}, and is still under way{_late(left.handle)}: a "
                "call that blocks waits for that, one that does not can be repeated"
            ) from None


def _without_result(left: _Left) -> _Left:
    handle = left.handle
    handle.out_address, handle.result, handle.keep, handle.finish = 0, None, None, None
    return left


def _late(handle: Handle) -> str:
    who = handle.waits_for()
    return f"; it waits for {who}" if who else ""


def finish_call(client: Client, handle: Handle, timeout_s: float | None = None) -> Any:
    """Runs synchronize() for a blocking call: a round that it leaves ends by itself."""
    try:
        return client.synchronize(handle, timeout_s)
    except Timeout:
        who = handle.waits_for() if timeout_s else ""
        handle.leave()
        raise Timeout(
            f"{handle.title}: not complete after {timeout_s} s; the call goes on by itself, without "
            "its result" + (f"; it still waits for {who}" if who else "")
        ) from None
    except TalwegError:
        raise
    except BaseException:  # A signal's handler has raised it, as on Ctrl-C.
        handle.leave()
        raise
