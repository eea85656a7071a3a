# SPDX-License-Identifier: Apache-2.0
"""Open rounds, as callers hold them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from talweg._declaration import Declaration
from talweg._library import native, native_arguments
from talweg.errors import InvalidArgument, TalwegError, Timeout

if TYPE_CHECKING:
    from talweg._client.client import Client


@dataclass(eq=False)  # A handle equals only itself: == of tensors gives no single answer.
class Handle:
    """An open round of one tensor: poll() and synchronize() take it.

    `keep` holds objects that must stay alive until then. `result` is the value that synchronize()
    returns, after it has called `finish`.
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
    # How many ranks' contributions are in the result. Set when the round is taken.
    ranks_summed: int | None = None
    # A round without a name: another round needed its tensor before synchronize() was called.
    taken: bool = False
    failure: TalwegError | None = None
    begin_ns: int = field(default_factory=time.monotonic_ns)

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError(
            f"the handle of {self.title} stands for one open round, and cannot be copied or pickled: "
            "pass the handle itself, or the result of synchronize()"
        )

    def is_complete(self, connection: native.Connection) -> bool:
        """Whether take() would return without waiting."""
        return connection.poll(self.tensor, self.round)

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        """Waits for the round and copies its result out."""
        connection.wait(self.tensor, self.round, self.out_address, timeout_s)
        self.ranks_summed = connection.ranks_summed(self.tensor)

    def take_early(self) -> None:
        """Takes a round without a name early: synchronize() later returns its result or raises."""
        if self.done or self.taken:
            return
        try:
            self.take(self.client.connection, None)
        except TalwegError as failure:
            self.failure = failure
        self.taken = True

    def order_result(self) -> None:
        """Repeats for the calling thread what take() has done for the thread that called take()."""

    def waits_for(self) -> str:
        """Returns a text that names the ranks that the round waits for; empty if none is known."""
        return self.client.connection.waits_for(self.tensor, self.round)

    @property
    def title(self) -> str:
        """How error texts name this round."""
        return f"tensor '{self.name}'"

    def leave(self) -> None:
        """Tells the handle that its caller no longer waits for it: the round ends by itself."""

    def call_when_complete(self, call: Callable[[], None]) -> None:
        """Has another thread make `call` when take() would return without waiting."""
        completions = self.client.completions
        if self.taken or not completions.watch(self.tensor, self.round, call):
            completions.call(call)  # If nothing can be watched, take() waits or raises why.


@dataclass(eq=False)
class PushedRound(Handle):
    """A round that is taken without its caller if the caller drops the handle: left_rounds.py."""

    over: bool = False  # Whether the tensor may be pushed again.

    def __del__(self) -> None:
        if not self.over and not self.client.is_closed:
            self.client.left.drop(self)

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        try:
            super().take(connection, timeout_s)
        except Timeout:
            raise
        except TalwegError:
            self.over = True
            raise
        self.over = True


@dataclass(eq=False)
class HandleOfMany(Handle):
    """One handle for several handles."""

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
        native_arguments.nanoseconds(timeout_s)  # Raises InvalidArgument for an invalid time.
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
            except TalwegError as error:  # The other handles are taken all the same.
                failure = failure or error
        if failure is not None:
            raise failure
        self.result = [part.result for part in self.parts]


def require_handle(handle: Any) -> None:
    """Raises InvalidArgument if `handle` is not a Handle."""
    if not isinstance(handle, Handle):
        raise InvalidArgument(
            f"expected the handle of an _async call, got {type(handle).__name__}: several handles "
            "are synchronized one by one"
        )


def group_of(client: Client, parts: Sequence[Handle]) -> Handle:
    """Returns one handle for `parts`. Its result is the list of their results."""
    name = parts[0].name if parts else "nothing"
    return HandleOfMany(client, 0, 0, f"{name} and others", parts=parts)


# The bytes that the tensors of one kind of nameless rounds may take together, and their number.
_NAMELESS_BYTES = 32 << 20
_NAMELESS_MIN = 2
_NAMELESS_MAX = 16


class Nameless:
    """Chooses the tensors for rounds without a name.

    Each kind and declaration has several tensors, which take turns by the order of these calls.
    That order is the same at all ranks. So a call's kind and declaration decide its tensor,
    whatever else the ranks have called before.
    """

    def __init__(self) -> None:
        self.open: dict[str, Handle] = {}
        self._calls: dict[tuple[str, Declaration], int] = {}

    def of_tensor(self, tensor: int) -> Handle | None:
        """Returns the tensor's round if it is open and has not been taken."""
        for handle in self.open.values():
            if handle.tensor == tensor and not handle.done and not handle.taken:
                return handle
        return None

    def next_name(self, kind: str, declaration: Declaration) -> str:
        """Returns the name of the tensor whose turn it is."""
        turn = self._calls.get((kind, declaration), 0) % _turns_of(declaration)
        return f"{kind}.{declaration.text()}.{turn}"

    def take_turn(self, kind: str, declaration: Declaration) -> str:
        """Returns the name of the tensor whose turn it is. The next tensor's turn follows."""
        name = self.next_name(kind, declaration)
        key = (kind, declaration)
        self._calls[key] = self._calls.get(key, 0) + 1
        return name

    @property
    def state(self) -> Any:
        """How many turns each kind and declaration has taken."""
        return dict(self._calls)

    @state.setter
    def state(self, state: Any) -> None:
        self._calls = dict(state)

    def forget(self, handle: Handle) -> None:
        """Forgets the round of `handle`, which has been taken and has a result."""
        if self.open.get(handle.name) is handle:
            del self.open[handle.name]


def _turns_of(declaration: Declaration) -> int:
    wanted = _NAMELESS_BYTES // max(declaration.nbytes, 1)
    return max(_NAMELESS_MIN, min(_NAMELESS_MAX, wanted))
