# SPDX-License-Identifier: Apache-2.0
"""One rank's connection to its node's agent; what every framework's module is built on."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from talweg._client import agents, hooks, local
from talweg._client.attention import Attention
from talweg._client.completions import Completions
from talweg._client.deadlines import Deadlines
from talweg._client.declared import Declared, Tensors
from talweg._client.handles import Handle, Nameless, require_handle
from talweg._client.left_rounds import LeftRounds
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
    Unsupported,
)

# How long a rank that leaves sees to calls that it has begun, and others perhaps not.
_LEAVE_S = 5.0

_Companion = TypeVar("_Companion")


class NamesWatcher(Protocol):
    """Hears of names that are new here, before they are pushed."""

    def on_tensors(self, declarations: Sequence[tuple[str, Declaration, int]]) -> None:
        """Tensors with their priorities."""

    def on_channel(self, channel: Any) -> None:
        """A channel of collectives (_collectives.call_channel)."""

    def agree(self) -> None:
        """All ranks call it, if all have one, where the membership has changed."""


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
        """`connection`: that of this rank, which has been attached again; `attachment`: to its
        keeper, if it has one.
        """
        native_arguments.nanoseconds(timeout_s)  # Refuses what is no time.
        place = None
        if alone is None and not agent_socket and not os.environ.get("TALWEG_AGENT_SOCKET"):
            place = (
                launchers.find_in(os.environ, world, timeout_s)
                if world
                else launchers.find(os.environ)
            )
        if place is not None and place.size == 1 and not os.environ.get("TALWEG_SCHEDULER"):
            place, alone = None, True
        # Without an agent it is a job of its own: when told so, or when nobody has launched this
        # process.
        if alone is None:
            alone = place is None and agent_socket is None and local.is_alone(os.environ)
        self.is_alone = alone
        # Where its agent listens; None: there is none.
        self.agent_socket = agent_socket or os.environ.get("TALWEG_AGENT_SOCKET")
        # To the keeper of its node, where init() has started the daemons.
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
        self._nameless_calls: dict[str, int] = {}
        self.left = LeftRounds()
        self._pushed_bytes = 0
        self._in_barrier: set[str] = set()
        self._pid = os.getpid()
        self._leavers: list[Callable[[], None]] = []
        self._is_closed = False
        self._is_abandoned = False
        self._closers: list[Callable[[], None]] = []
        # Each is called with every round that synchronize() has taken.
        self.watchers: list[Callable[[Handle], None]] = []
        # Each is called before a round is pushed from host memory, with its address.
        self.push_watchers: list[Callable[[Declared, int], None]] = []
        # Makes calls when rounds are over.
        self.completions = Completions(self.connection)
        # Makes calls when times have come.
        self.deadlines = Deadlines(self.completions.call)
        # What others have pushed by this client's connection.
        self.byte_counters: list[Callable[[], int]] = []
        # What calls of collectives keep.
        self.channels: dict[Any, Any] = {}
        self.channels_lock = threading.Lock()
        self.connection.attend = Attention(self.channels)
        # Told of each name that comes into use here; None: nobody wants to know.
        self.names_watcher: NamesWatcher | None = None
        # Barriers of sets that were interrupted: the next call goes on with them.
        self._open_barriers: dict[str, Handle] = {}
        # What process groups of torch.distributed keep.
        self.lanes: dict[Any, Any] = {}
        self._companions: dict[type, Any] = {}
        self._companions_lock = threading.RLock()

    @functools.cached_property
    def membership_at_first(self) -> tuple[native.Membership, list[native.Member]] | None:
        """Who was in the job when this client came; None: it is alone, or its agent cannot tell."""
        if self.is_alone:
            return None
        try:
            return self.connection.membership()
        except Unsupported:  # An agent before there was such a thing.
            return None

    @property
    def nodes_change(self) -> bool:
        """Whether nodes may come and go."""
        return self.membership_at_first is not None and bool(self.membership_at_first[0].changes)

    def companion(self, kind: type[_Companion]) -> _Companion:
        """The one object of that class that goes with this client: kind(client), made when it is
        first asked for. So rooms above this one keep what belongs to a client.
        """
        with self._companions_lock:
            if kind not in self._companions:
                self._companions[kind] = kind(self)  # type: ignore[call-arg]
            found: _Companion = self._companions[kind]
            return found

    @property
    def is_inherited(self) -> bool:
        """Whether it is a parent's, in a process that was forked."""
        return os.getpid() != self._pid

    @property
    def is_abandoned(self) -> bool:
        """Whether another one has taken its place, as its agent was lost."""
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

    def _push_rest(self) -> None:
        """Calls that nobody has waited for may have rounds to push, for which other ranks wait."""
        end = time.monotonic() + _LEAVE_S
        for channel in list(self.channels.values()):
            channel.push_rest(end)

    def abandon(self) -> None:
        """Another one takes its place, as its agent is lost."""
        self._is_closed = self._is_abandoned = True
        while self._closers:
            self._closers.pop()()
        self.deadlines.end()
        self.completions.end()
        self.connection.retire()

    def call_before_closing(self, leaver: Callable[[], None]) -> None:
        """Has close() call it first, while rounds can still be pushed and taken."""
        self._leavers.append(leaver)

    def follow(self, epoch: int) -> None:
        """The numbers of ranks are those of that view from now on."""
        self.lanes.clear()
        self.connection.follow(epoch)
        self.connection.view_suffix = f".e{epoch}"
        self.rank, self.size = self.connection.rank, self.connection.size
        self.tensors.forget_numbers()
        with self._lock:
            self._nameless = Nameless()
            self._open_barriers.clear()
        with self.channels_lock:
            self.channels.clear()
        hooks.counters()

    def finish_step(self) -> None:
        """Returns when nothing is under way that belongs to the step."""
        hooks.finishers()

    def call_when_closed(self, closer: Callable[[], None]) -> None:
        """Has close() call it, after the goodbye."""
        self._closers.append(closer)

    @property
    def ranks_sum(self) -> bool:
        """Whether this node's ranks, which are the whole job, sum larger tensors themselves."""
        return self.tensors.ranks_sum

    @property
    def tensor_count(self) -> int:
        """How many tensors this rank has declared."""
        with self.channels_lock:
            return len(self.tensors) + sum(len(each) for each in self.channels.values())

    @property
    def pushed_bytes(self) -> int:
        """Bytes of tensors that this rank has pushed."""
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
        """Starts a round with what `start` makes of its name, which is found where there is none.

        `suffix` is a process set's: a name belongs to one group. Calls of different `of` have orders
        of their own. `compare` is called before a round without a name whose tensor is new here.

        A name is there for ever, with its memory. So a few tensors take turns for rounds without
        one, by the order of these calls alone: it is the same at every rank, and the order in which
        they synchronize is not. A round that is still open when its tensor is wanted again is taken
        first, for its handle to give out.
        """
        if name is not None:
            return start(name + suffix if isinstance(name, str) else name)
        kind = f"{of}{'broadcast' if declaration.op is Op.BROADCAST else 'push_pull'}{suffix}"
        if compare is not None and not self.tensors.known(
            self._nameless.next_name(kind, declaration)
        ):
            compare()
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
        """The tensor's round, if it is one without a name that nobody has taken."""
        with self._lock:
            return self._nameless.of_tensor(tensor)

    @property
    def nameless_state(self) -> Any:
        """By which order calls without a name find their tensors; ranks in one place have it alike."""
        with self._lock:
            return dict(self._nameless_calls), self._nameless.state

    @nameless_state.setter
    def nameless_state(self, state: Any) -> None:
        with self._lock:
            self._nameless_calls, self._nameless.state = state

    def count_nameless(self, suffix: str) -> int:
        """How many calls without a name the group with that suffix has made before this one."""
        with self._lock:
            calls = self._nameless_calls.get(suffix, 0)
            self._nameless_calls[suffix] = calls + 1
        return calls

    def check_timeout(self, timeout_s: float | None) -> None:
        """InvalidArgument for what is no time, before anything is pushed."""
        native_arguments.nanoseconds(timeout_s)

    def check_push(self, declaration: Declaration) -> None:
        """InvalidArgument for what cannot be a round."""
        native_arguments.whole("root_rank", declaration.root_rank)
        if not 0 <= declaration.root_rank < self.size:
            raise InvalidArgument(
                f"root_rank is {declaration.root_rank}, but the job has {self.size} ranks "
                f"(0 to {self.size - 1})"
            )

    def before_push(self, declared: Declared, address: int) -> None:
        """Has what is at `address` seen before it is pushed."""
        for watch in self.push_watchers:
            watch(declared, address)

    def count_push(self, declaration: Declaration) -> None:
        """Adds a round that was started to pushed_bytes."""
        self.count_pushed_bytes(declaration.nbytes)

    def count_pushed_bytes(self, nbytes: int) -> None:
        """Adds to pushed_bytes what a collective gives."""
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
        """push() of what is declared already."""
        round_ = self.push_round(declared, address, priority)
        return Handle(
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
        """Whether synchronize() would return at once."""
        self._check_own(handle)
        return handle.done or handle.taken or handle.is_complete(self.connection)

    def synchronize(self, handle: Handle, timeout_s: float | None = None) -> Any:
        """Waits for the round, copies its result out and returns it.

        Raises Timeout when `timeout_s` is over (the round stays open), and whatever the round
        failed with. A handle is synchronized once.
        """
        result = self.finish(handle, timeout_s)
        for watch in self.watchers:
            watch(handle)
        return result

    def finish(self, handle: Handle, timeout_s: float | None = None) -> Any:
        """As synchronize(), of a part of what others know."""
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
    ) -> None:
        """A whole round, in place, of a contiguous NumPy array.

        With `ranks` and the suffix of their set: among these.
        """
        declaration = Declaration(numpy_dtype(array.dtype), array.size, op, root_rank, ranks)
        address = array.ctypes.data
        handle = self.push(name + suffix, declaration, address, address, keep=array)
        self.synchronize(handle, timeout_s)

    def barrier(self, ranks: tuple[int, ...] = (), suffix: str = "") -> None:
        """Returns when every rank has called it; an interrupted one is gone on with by the next.

        With `ranks` and the suffix of their set: every rank of these.
        """
        name = f"talweg.barrier{suffix}"
        with self._lock:
            if name in self._in_barrier:
                raise Busy("another thread of this process is in barrier(): one calls it at a time")
            self._in_barrier.add(name)
        try:
            if ranks:
                self._barrier_of(ranks, name)
            else:
                self.connection.barrier()
        finally:
            with self._lock:
                self._in_barrier.discard(name)

    def _barrier_of(self, ranks: tuple[int, ...], name: str) -> None:
        handle = self._open_barriers.get(name)
        if handle is None:
            one: np.ndarray = np.ones(1, np.int32)
            declaration = Declaration(DType.I32, 1, Op.SUM, 0, ranks)
            handle = self.push(name, declaration, one.ctypes.data, 0)
            self._open_barriers[name] = handle
        self.synchronize(handle)
        del self._open_barriers[name]
