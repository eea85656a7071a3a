# SPDX-License-Identifier: Apache-2.0
"""Open rounds, as callers hold them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from talweg._declaration import Declaration
from talweg._library import native, native_arguments
from talweg.errors import InvalidArgument, TalwegError, Timeout

if TYPE_CHECKING:
    from talweg._client.client import Client


@dataclass(eq=False)  # Each is itself alone, and tensors have no one answer to ==.
class Handle:
    """An open round of one tensor: poll() and synchronize() take it.

    `keep` holds whatever must stay alive until then; `result` is what synchronize() returns, once
    it has called `finish`.
    """

    client: Client

    tensor: int
    round: int
    name: str
    out_address: int = 0  # 0: nothing is copied.
    result: Any = None
    keep: Any = None
    finish: Callable[[], None] | None = None
    done: bool = False
    # How many ranks are in the result, once it is taken.
    ranks_summed: int | None = None
    # A round without a name: another one needed its tensor before synchronize() was called.
    taken: bool = False
    failure: TalwegError | None = None
    begin_ns: int = field(default_factory=time.monotonic_ns)

    def is_complete(self, connection: native.Connection) -> bool:
        """Whether take() would not wait."""
        return connection.poll(self.tensor, self.round)

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        """Waits for the round and copies its result out."""
        connection.wait(self.tensor, self.round, self.out_address, timeout_s)
        self.ranks_summed = connection.ranks_summed(self.tensor)

    def take_early(self) -> None:
        """Takes a round without a name: synchronize() gives its result out, or its failure."""
        if self.done or self.taken:
            return
        try:
            self.take(self.client.connection, None)
        except TalwegError as failure:
            self.failure = failure
        self.taken = True

    def order_result(self) -> None:
        """What take() has done to the thread that called it, once more for this one."""

    def waits_for(self) -> str:
        """Whom the round waits for, for people; empty: nobody that is known."""
        return self.client.connection.waits_for(self.tensor, self.round)

    @property
    def title(self) -> str:
        """What texts of errors call it."""
        return f"tensor '{self.name}'"

    def leave(self) -> None:
        """Nobody waits for it any more: it ends by itself."""

    def call_when_complete(self, call: Callable[[], None]) -> None:
        """Has it called on another thread when take() would not wait."""
        completions = self.client.completions
        if self.taken or not completions.watch(self.tensor, self.round, call):
            completions.call(call)  # Taking it tells why.


@dataclass(eq=False)
class HandleOfMany(Handle):
    """One handle for several."""

    parts: Sequence[Handle] = ()

    def is_complete(self, connection: native.Connection) -> bool:
        return all(part.done or self.client.poll(part) for part in self.parts)

    def waits_for(self) -> str:
        return next((part.waits_for() for part in self.parts if not part.done), "")

    def leave(self) -> None:
        for part in self.parts:
            if not part.done:
                part.leave()

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        native_arguments.nanoseconds(timeout_s)  # Refuses what is no time.
        end = None if timeout_s is None else time.monotonic() + min(timeout_s, 1e8)
        failure: TalwegError | None = None
        for part in self.parts:
            if part.done:
                continue
            try:
                left = None if end is None else max(0.0, end - time.monotonic())
                self.client.synchronize(part, left)
            except Timeout:
                raise
            except TalwegError as error:  # The others are taken all the same.
                failure = failure or error
        if failure is not None:
            raise failure
        self.result = [part.result for part in self.parts]


def require_handle(handle: Any) -> None:
    """InvalidArgument for what is none."""
    if not isinstance(handle, Handle):
        raise InvalidArgument(
            f"expected the handle of an _async call, got {type(handle).__name__}: several handles "
            "are synchronized one by one"
        )


def group_of(client: Client, parts: Sequence[Handle]) -> Handle:
    """One handle for several, whose result is the list of theirs."""
    name = parts[0].name if parts else "nothing"
    return HandleOfMany(client, 0, 0, f"{name} and others", parts=parts)


# What the tensors of one kind of nameless rounds may take together, and how many they are.
_NAMELESS_BYTES = 32 << 20
_NAMELESS_MIN = 2
_NAMELESS_MAX = 16


class Nameless:
    """Which tensors rounds without a name go through.

    Each kind and declaration has some, which take turns by the order of these calls: it is the same
    at all ranks. So what is called says which tensor it is, whatever ranks have called before.
    """

    def __init__(self) -> None:
        self.open: dict[str, Handle] = {}
        self._calls: dict[tuple[str, Declaration], int] = {}

    def of_tensor(self, tensor: int) -> Handle | None:
        """The tensor's round, if it is open and was not taken."""
        for handle in self.open.values():
            if handle.tensor == tensor and not handle.done and not handle.taken:
                return handle
        return None

    def next_name(self, kind: str, declaration: Declaration) -> str:
        """The tensor whose turn it is."""
        turn = self._calls.get((kind, declaration), 0) % _turns_of(declaration)
        return f"{kind}.{declaration.text()}.{turn}"

    def take_turn(self, kind: str, declaration: Declaration) -> str:
        """The tensor whose turn it is. From now on it is the next one's."""
        name = self.next_name(kind, declaration)
        key = (kind, declaration)
        self._calls[key] = self._calls.get(key, 0) + 1
        return name

    @property
    def state(self) -> Any:
        """Whose turn it is."""
        return dict(self._calls)

    @state.setter
    def state(self, state: Any) -> None:
        self._calls = dict(state)

    def forget(self, handle: Handle) -> None:
        """It has been taken, and has a result."""
        if self.open.get(handle.name) is handle:
            del self.open[handle.name]


def _turns_of(declaration: Declaration) -> int:
    wanted = _NAMELESS_BYTES // max(declaration.nbytes, 1)
    return max(_NAMELESS_MIN, min(_NAMELESS_MAX, wanted))
