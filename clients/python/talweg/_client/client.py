# SPDX-License-Identifier: Apache-2.0
"""One rank's connection to its node's agent. Every framework's module is built on it."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from talweg import _interrupts
from talweg._client import agents, hooks, local
from talweg._client.attention import Attention
from talweg._client.completions import Completions
from talweg._client.deadlines import Deadlines
from talweg._client.declared import Declared, Tensors
from talweg._client.handles import Handle, Nameless, PushedRound, require_handle
from talweg._client.left_rounds import LeftRounds
from talweg._counted import counted
from talweg._declaration import Declaration, DType, Op, numpy_dtype
from talweg._library import native, native_arguments
from talweg._node import launchers
from talweg._node.join import Attachment, attach
from talweg._node.launchers import World
from talweg.errors import (
    AgentLost,
    Busy,
    Closed,
    InvalidArgument,
    TalwegError,
    Timeout,
    Unsupported,
)

# How long a leaving rank carries on calls that it has begun and other ranks may not have begun.
_LEAVE_S = 5.0

_Companion = TypeVar("_Companion")


class NamesWatcher(Protocol):
    """Is told of names that are new on this rank, before they are pushed."""

    def on_tensors(self, declarations: Sequence[tuple[str, Declaration, int]]) -> None:
        """Is told of tensors: their names, declarations and priorities."""

    def on_channel(self, channel: Any) -> None:
        """Is told of a channel of collectives (_collectives.call_channel)."""

    def agree(self) -> None:
        """Is called by all ranks, if all have a watcher, after the membership has changed."""


class Client:
    """A rank. Any thread may call any method; a round belongs to whoever pushed it."""

    def __init__(
        self,
        agent_socket: str | None = None,
        timeout_s: float = 60.0,
        alone: bool | None = None,
        world: World | None = None,
        connection: native.Connection | None = None,
        attachment: Attachment | None = None,
    ) -> None:
        """`connection` is this rank's connection if it has been attached again. `attachment` is the
        rank's attachment to its keeper, if it has a keeper.
        """
        native_arguments.nanoseconds(timeout_s)  # Raises InvalidArgument for an invalid time.
        place = None
        if alone is None and not agent_socket and not os.environ.get("TALWEG_AGENT_SOCKET"):
            place = (
                launchers.find_in(os.environ, world, timeout_s)
                if world
                else launchers.find(os.environ)
            )
        if place is not None and place.size == 1 and not os.environ.get("TALWEG_SCHEDULER"):
            place, alone = None, True
        # Without an agent the rank is a job of its own: if `alone` says so, or if no launcher has
        # started this process.
        if alone is None:
            alone = place is None and agent_socket is None and local.is_alone(os.environ)
            if alone:
                local.warn_of_scheduler(os.environ)
        self.is_alone = alone
        # Where the rank's agent listens. None if there is no agent.
        self.agent_socket = agent_socket or os.environ.get("TALWEG_AGENT_SOCKET")
        # The attachment to the keeper of the node, if init() has started the daemons.
        self.attachment = attachment
        self.connection: native.Connection
        if connection is not None:
            self.connection = connection
        elif self.is_alone:
            self.connection = local.LocalConnection()
        elif place is not None:
            self.attachment = attach(place, os.environ, timeout_s)
            self.agent_socket = self.attachment.agent_socket
            self.connection = self.attachment.connect(timeout_s)
        else:
            self.connection = agents.connect_to_agent(agent_socket, timeout_s)
        self.rank: int = self.connection.rank
        self.size: int = self.connection.size
        self.local_rank: int = self.connection.local_rank
        self.local_size: int = self.connection.local_size
        self._lock = threading.Lock()
        self.tensors = Tensors(self.connection)
        self._nameless = Nameless()
        self._starts_nameless = threading.RLock()
        self._nameless_calls: dict[str, int] = {}
        self.left = LeftRounds()
        self._pushed_bytes = 0
        self._in_barrier: set[str] = set()
        self._pid = os.getpid()
        self._leavers: list[Callable[[], None]] = []
        self._is_closed = False
        self._is_abandoned = False
        self._closers: list[Callable[[], None]] = []
        # synchronize() calls each of these with the handle of the round that it has taken.
        self.watchers: list[Callable[[Handle], None]] = []
        # Each is called with the tensor and the address, before a round is pushed from host memory.
        self.push_watchers: list[Callable[[Declared, int], None]] = []
        # Makes calls when rounds are over.
        self.completions = Completions(self.connection)
        # Makes calls at given times.
        self.deadlines = Deadlines(self.completions.call)
        # Each returns the bytes that other code has pushed over this client's connection.
        self.byte_counters: list[Callable[[], int]] = []
        # The channels of collectives.
        self.channels: dict[Any, Any] = {}
        self.channels_lock = threading.Lock()
        # The queues of names whose calls have waited for an open round (_collectives/queued.py).
        self.queues: dict[str | None, Any] = {}
        self.connection.attend = Attention(self.channels)
        # Is told of each name that comes into use on this rank. None if there is no watcher.
        self.names_watcher: NamesWatcher | None = None
        # The interrupted barriers of process sets: the next call continues them.
        self._open_barriers: dict[str, Handle] = {}
        # The interrupted rounds of run(), by their names, that the next call goes on with.
        self._interrupted: dict[str, Handle] = {}
        # The lanes of torch.distributed's process groups.
        self.lanes: dict[Any, Any] = {}
        self._companions: dict[type, Any] = {}
        self._companions_lock = threading.RLock()

    @functools.cached_property
    def membership_at_first(self) -> tuple[native.Membership, list[native.Member]] | None:
        """Returns who was in the job when this client joined. None if the client is alone or its
        agent cannot tell.
        """
        if self.is_alone:
            return None
        try:
            return self.connection.membership()
        except Unsupported:  # The agent is too old to tell.
            return None

    @property
    def nodes_change(self) -> bool:
        """Whether nodes may come and go."""
        return self.membership_at_first is not None and bool(self.membership_at_first[0].changes)

    def companion(self, kind: type[_Companion]) -> _Companion:
        """Returns this client's one object of class `kind`. The first call makes it with
        kind(client). So rooms above this one keep their state for a client.
        """
        with self._companions_lock:
            if kind not in self._companions:
                self._companions[kind] = kind(self)  # type: ignore[call-arg]
            found: _Companion = self._companions[kind]
            return found

    @property
    def is_inherited(self) -> bool:
        """Whether this client belongs to the parent of this forked process."""
        return os.getpid() != self._pid

    @property
    def is_abandoned(self) -> bool:
        """Whether another client has replaced this one because its agent was lost."""
        return self._is_abandoned

    @property
    def is_closed(self) -> bool:
        """Whether close() has been called."""
        return self._is_closed

    def close(self) -> None:
        """Says goodbye to the agent. A second call does nothing."""
        while self._leavers:
            self._leavers.pop()()
        if not self._is_closed:
            self._push_rest()
        self._is_closed = True
        self.connection.close()
        while self._closers:
            self._closers.pop()()
        self.deadlines.end()
        self.completions.end(_LEAVE_S)
        if self.attachment is not None:
            self.attachment.leave()
            self.attachment = None
        self.connection.retire()

    def _push_rest(self) -> None:
        """Pushes the rounds that other ranks wait for, of calls that no caller has waited for."""
        end = time.monotonic() + _LEAVE_S
        for channel in list(self.channels.values()):
            channel.push_rest(end)

    def abandon(self) -> None:
        """Ends this client because its agent is lost: another client replaces it."""
        self._is_closed = self._is_abandoned = True
        while self._closers:
            self._closers.pop()()
        self.deadlines.end()
        self.completions.end()
        self.connection.retire()

    def call_before_closing(self, leaver: Callable[[], None]) -> None:
        """Makes close() call `leaver` first, while rounds can still be pushed and taken."""
        self._leavers.append(leaver)

    def follow(self, epoch: int) -> None:
        """Gives ranks the numbers that they have in the view of `epoch`."""
        self.lanes.clear()
        self.connection.follow(epoch)
        self.connection.view_suffix = f".e{epoch}"
        self.rank, self.size = self.connection.rank, self.connection.size
        self.tensors.forget_numbers()
        with self._lock:
            self._nameless = Nameless()
            self._open_barriers.clear()
            self._interrupted.clear()
        with self.channels_lock:
            self.channels.clear()
            self.queues.clear()
        hooks.counters()

    def finish_step(self) -> None:
        """Returns when no round or call of the current step is open."""
        hooks.finishers()

    def call_when_closed(self, closer: Callable[[], None]) -> None:
        """Makes close() call `closer` after the goodbye. abandon() calls it, too."""
        self._closers.append(closer)

    @property
    def ranks_sum(self) -> bool:
        """Whether this node's ranks sum larger tensors themselves. They are then the whole job."""
        return self.tensors.ranks_sum

    @property
    def tensor_count(self) -> int:
        """The number of tensors that this rank has declared."""
        with self.channels_lock:
            return len(self.tensors) + sum(len(each) for each in self.channels.values())

    @property
    def pushed_bytes(self) -> int:
        """The bytes of tensors that this rank has pushed."""
        return self._pushed_bytes + sum(count() for count in self.byte_counters)

    def start(
        self,
        name: str | None,
        declaration: Declaration,
        start: Callable[[str], Handle],
        suffix: str = "",
        of: str = "",
        compare: Callable[[], None] | None = None,
    ) -> Handle:
        """Starts a round: calls `start` with the tensor's name. Without `name` it finds one.

        `suffix` is a process set's: a name belongs to one group. Calls with different `of` have
        separate orders. `compare` is called before a round without a name whose tensor is new here.

        A name stays for ever, with its memory. So a few tensors take turns for rounds without a
        name, by the order of these calls alone. That order is the same at every rank; the order in
        which ranks synchronize is not. If the tensor whose turn it is still has an open round, that
        round is taken first, and its handle returns the result later.
        """
        if name is not None:
            return start(name + suffix if isinstance(name, str) else name)
        kind = f"{of}{'broadcast' if declaration.op is Op.BROADCAST else 'push_pull'}{suffix}"
        if compare is not None and not self.tensors.known(
            self._nameless.next_name(kind, declaration)
        ):
            compare()
        with self._starts_nameless:  # Otherwise another thread might get the tensor's next turn.
            with self._lock:
                name = self._nameless.take_turn(kind, declaration)
                earlier = self._nameless.open.get(name)
            if earlier is not None:
                earlier.take_early()
            handle = start(name)
            with self._lock:
                self._nameless.open[name] = handle
            return handle

    def open_nameless(self, tensor: int) -> Handle | None:
        """Returns the tensor's round if it has no name and has not been taken, else None."""
        with self._lock:
            return self._nameless.of_tensor(tensor)

    @property
    def nameless_state(self) -> Any:
        """What decides the tensors of calls without a name. Ranks in one place have it alike."""
        with self._lock:
            return dict(self._nameless_calls), self._nameless.state

    @nameless_state.setter
    def nameless_state(self, state: Any) -> None:
        with self._lock:
            self._nameless_calls, self._nameless.state = state

    def count_nameless(self, suffix: str) -> int:
        """Counts a call without a name in the group of `suffix`; returns how many came before."""
        with self._lock:
            calls = self._nameless_calls.get(suffix, 0)
            self._nameless_calls[suffix] = calls + 1
        return calls

    def check_timeout(self, timeout_s: float | None) -> None:
        """Raises InvalidArgument if `timeout_s` is not a valid time, before anything is pushed."""
        native_arguments.nanoseconds(timeout_s)

    def check_push(self, declaration: Declaration) -> None:
        """Raises InvalidArgument if no round can have this declaration."""
        native_arguments.whole("root_rank", declaration.root_rank)
        if not 0 <= declaration.root_rank < self.size:
            raise InvalidArgument(
                f"root_rank is {declaration.root_rank}, but the job has {counted(self.size, 'rank')} "
                f"(0 to {self.size - 1})"
            )

    def before_push(self, declared: Declared, address: int) -> None:
        """Shows the push watchers the data at `address` before it is pushed."""
        for watch in self.push_watchers:
            watch(declared, address)

    def count_push(self, declaration: Declaration) -> None:
        """Adds the bytes of a started round to pushed_bytes."""
        self.count_pushed_bytes(declaration.nbytes)

    def count_pushed_bytes(self, nbytes: int) -> None:
        """Adds the bytes that this rank gives to a collective to pushed_bytes."""
        self._pushed_bytes += nbytes

    def push(
        self,
        name: str,
        declaration: Declaration,
        address: int,
        out_address: int,
        priority: int = 0,
        result: Any = None,
        keep: Any = None,
        finish: Callable[[], None] | None = None,
    ) -> Handle:
        """Starts a round with the `count` elements at `address`; they are copied at once."""
        self.check_push(declaration)
        declared = self.tensors.declare(name, declaration, priority)
        return self.push_declared(declared, address, out_address, priority, result, keep, finish)

    def push_declared(
        self,
        declared: Declared,
        address: int,
        out_address: int,
        priority: int,
        result: Any = None,
        keep: Any = None,
        finish: Callable[[], None] | None = None,
    ) -> Handle:
        """Does the same as push(), for a tensor that is already declared."""
        with _interrupts.held:  # A handle that an interrupt then drops is a round that is left.
            round_ = self.push_round(declared, address, priority)
            return PushedRound(
                self, declared.tensor, round_, declared.name, out_address, result, keep, finish
            )

    def push_round(self, declared: Declared, address: int, priority: int) -> int:
        """Pushes the tensor's next round, and returns its number."""
        if declared.buffer is not None and address != declared.buffer.address:
            declared.buffer.claim()
        self.before_push(declared, address)
        signature, connection = declared.signature, self.connection
        round_ = 0
        while not round_:
            try:
                if signature:
                    parts = (declared.tensor, address, None, priority, signature)
                    round_ = connection.push_parts(*parts)
                else:
                    round_ = connection.push_pull(declared.tensor, address, priority)
            except Busy as busy:
                self.left.make_way(declared.name, busy)
                if self.tensors.is_free(declared.name):
                    raise Busy(
                        f"tensor '{declared.name}': its last round has ended with a mismatch, which "
                        "frees the name: repeat the call"
                    ) from None
        self.count_push(declared.declaration)
        return round_

    def _check_own(self, handle: Handle) -> None:
        require_handle(handle)
        if handle.client is not self:
            if handle.client.is_abandoned:
                raise AgentLost(
                    f"tensor '{handle.name}': its round was open when this rank's agent was lost: "
                    "begin the step again"
                )
            raise Closed(
                f"the handle of tensor '{handle.name}' is from before talweg.shutdown(): "
                "synchronize rounds before leaving a job"
            )

    def poll(self, handle: Handle) -> bool:
        """Whether synchronize() would return without waiting."""
        self._check_own(handle)
        return handle.done or handle.taken or handle.is_complete(self.connection)

    def synchronize(self, handle: Handle, timeout_s: float | None = None) -> Any:
        """Waits for the round, copies its result out and returns it.

        Raises Timeout when `timeout_s` has passed (the round stays open), or the error that the
        round failed with. A handle can be synchronized only once.
        """
        result = self.finish(handle, timeout_s)
        for watch in self.watchers:
            watch(handle)
        return result

    def finish(self, handle: Handle, timeout_s: float | None = None) -> Any:
        """Does the same as synchronize(), for one part of an operation: no watcher is called."""
        self._check_own(handle)
        if handle.done:
            raise Busy(f"the handle of tensor '{handle.name}' was synchronized before")
        if handle.failure is not None:
            raise handle.failure
        if handle.taken:
            handle.order_result()
        else:
            handle.take(self.connection, timeout_s)
        handle.done = True
        if self._nameless.open:
            with self._lock:
                self._nameless.forget(handle)
        if handle.finish is not None:
            handle.finish()
        handle.finish = handle.keep = None
        return handle.result

    def run(
        self,
        name: str,
        array: np.ndarray,
        op: Op,
        root_rank: int = 0,
        ranks: tuple[int, ...] = (),
        suffix: str = "",
        timeout_s: float | None = None,
        goes_on: bool = False,
    ) -> None:
        """Runs a whole round, in place, of a contiguous NumPy array.

        `ranks` and `suffix`, those of a process set, limit the round to its ranks. If the call is
        interrupted, or ends with Timeout, the round ends by itself, and the next call is another
        one. With `goes_on` the next call of the name goes on with the same round, and with the
        array that the first call gave.
        """
        declaration = Declaration(numpy_dtype(array.dtype), array.size, op, root_rank, ranks)
        address, name = array.ctypes.data, name + suffix
        with _interrupts.held:
            handle = self._interrupted.pop(name, None)
            if handle is None:
                if self.left:
                    timeout_s = self.left.wait_for(name, timeout_s)
                handle = self.push(name, declaration, address, address, 0, array, array)
            try:
                result = self.synchronize(handle, timeout_s)
            except BaseException as error:
                is_open = isinstance(error, Timeout) or not isinstance(error, TalwegError)
                if goes_on and is_open:
                    self._interrupted[name] = handle
                raise
            if result is not array:
                array[...] = result

    def barrier(
        self, ranks: tuple[int, ...] = (), suffix: str = "", timeout_s: float | None = None
    ) -> None:
        """Returns when every rank has called it. The next call continues an interrupted barrier.
        So it does after Timeout.

        `ranks` and `suffix`, those of a process set, limit the barrier to its ranks.
        """
        self.check_timeout(timeout_s)
        name = f"talweg.barrier{suffix}"
        with self._lock:
            if name in self._in_barrier:
                raise Busy("another thread of this process is in barrier(): one calls it at a time")
            self._in_barrier.add(name)
        try:
            if ranks:
                self._barrier_of(ranks, name, timeout_s)
                return
            end = None if timeout_s is None else time.monotonic() + min(timeout_s, 1e8)
            if not self.connection.barrier(end):
                raise Timeout(
                    f"barrier: not all ranks have called it after {timeout_s} s; call it again, "
                    "which goes on with the same barrier"
                )
        finally:
            with self._lock:
                self._in_barrier.discard(name)

    def _barrier_of(self, ranks: tuple[int, ...], name: str, timeout_s: float | None) -> None:
        handle = self._open_barriers.get(name)
        if handle is None:
            one: np.ndarray = np.ones(1, np.int32)
            declaration = Declaration(DType.I32, 1, Op.SUM, 0, ranks)
            handle = self.push(name, declaration, one.ctypes.data, 0)
            self._open_barriers[name] = handle
        self.synchronize(handle, timeout_s)
        del self._open_barriers[name]
