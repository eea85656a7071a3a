# SPDX-License-Identifier: Apache-2.0
"""Rounds of push_pull and broadcast: which tensor each one goes through.

A name has one of these states, the same at all ranks of its group (docs/collectives.md):

    new      nobody has used it
    settled  the ranks have agreed on its tensor: a call is one round of that tensor
    free     ranks have used it otherwise, or have disagreed: a call is a collective, whose control
             round says what each rank brings

    new      a call, and the ranks agree                 settled
    new      a call, and the ranks disagree              free, the call ends with Mismatch
    settled  all ranks use it otherwise, and alike       free, the call goes on as a collective
    settled  ranks use it in two ways                    free, the call ends with Mismatch

Each round of a settled name is one round of its tensor, also for a rank that uses the name
otherwise. Such a rank gives nothing, and signs the round with what it would bring. The process that
compares the signatures (the agent, an aggregator, or the ranks that sum) ends the round for all
ranks with a text that names two of them. So a mismatch ends without another word of any rank: each
rank frees the name when it takes the round, which it does before it can use the name again. If
declarations have shapes, each round is signed with its shape, so that ranks whose tensors have
equally many elements but another shape get a Mismatch as well.

Calls without a name are collectives from the beginning. A few channels take turns for them, by the
order of these calls alone, so that several can be open at once. If nodes come and go, the ranks
compare them instead (compared.py), and each is a round of a settled tensor.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from talweg import _interrupts
from talweg._call_site import CallSite, call_site
from talweg._client import Client, Declared, Handle
from talweg._client.handles import PushedRound
from talweg._collectives import compared, nameless_groups, one_call
from talweg._collectives.call_channel import NAMELESS, CallChannel, channel_named
from talweg._collectives.channels import Job, Steps, Wait
from talweg._collectives.collectives import JobHandle
from talweg._collectives.kinds import ALL_REDUCE, BROADCAST, Given, Rows
from talweg._collectives.lost_ranks import lost_rank
from talweg._collectives.nameless_groups import NamelessGroup
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._collectives.words import DIMENSIONS_MAX
from talweg._declaration import Declaration, Op
from talweg._library import native, native_arguments
from talweg.errors import Mismatch, TalwegError, Timeout

# How many calls without a name may be under way at once. Further calls wait for their turn.
_TURNS = 2
# No lock is waited for longer, in seconds.
_LOCK_S_MAX = 1e8
_REMEDY = "all ranks must use a name for the same in the same call"


@dataclass
class Brought:
    """What one rank brings to a round."""

    declaration: Declaration
    address: int
    out_address: int
    result: Any
    keep: Any  # It must live until the result is there.
    priority: int = 0
    factors: Factors = NO_FACTORS
    # Called when the result is at out_address.
    finish: Callable[[], None] | None = None
    # Whether the bytes at `address` stay as they are until then.
    stays: bool = False
    is_async: bool = True  # Perhaps nobody waits for it soon.
    # The shape that compared calls must have alike, if the declaration has none.
    shape: tuple[int, ...] = ()


def start(
    client: Client,
    name: str | None,
    group: Group,
    brought: Brought,
    site: CallSite | None = None,
) -> Handle:
    """Starts a round of push_pull or broadcast, of a tensor in host memory.

    `site` is where the program has made the call, if it does not make it now.
    """
    if name is None:
        turns = 1 if client.nodes_change else _TURNS
        count, grouped = partial(client.count_nameless, group.suffix), nameless_groups.current()
        turn = (count() if grouped is None else grouped.take_turn(count)) % turns
        return start_nameless(client, f"talweg.nameless.{turn}", group, brought, grouped=grouped)
    native_arguments.check_name_and_priority(name, brought.priority)
    wire_name = group.name_of(name)
    if client.left:
        client.left.take_if_over(wire_name)
    known = client.tensors.declared_on_host(wire_name)
    if known is not None and not known.declaration.is_for(brought.declaration):
        client.tensors.adopt_shape(wire_name, brought.declaration)
        known = client.tensors.declared_on_host(wire_name)
    if known is not None and known.declaration.is_for(brought.declaration):
        return _push_declared(client, known, brought)
    mismatch = client.tensors.disagreed(wire_name)
    if mismatch is not None:
        return failed(client, wire_name, mismatch)
    settled = leaving = None
    site = site or call_site()
    if not client.tensors.is_free(wire_name):
        settled = client.tensors.settled_otherwise(wire_name, brought.declaration)
        if settled is None:
            return _push(client, wire_name, brought)
    require(client, f"tensor '{wire_name}'", brought.declaration)  # Before others are told.
    if settled is not None:
        leaving = _leave(client, settled, brought, site)
        client.tensors.free(wire_name)
    return _as_collective(client, f"{name}.free", name, group, brought, leaving, site=site)


def require(client: Client, what: str, declaration: Declaration) -> None:
    """Raises InvalidArgument if no round can have this declaration."""
    client.check_push(declaration)
    declaration.require(what)


# ----- Settled names -----


@dataclass(eq=False)
class _SettledRound(PushedRound):
    """A round of a settled name.

    Two threads may take it: the caller's, and one that carries on the calls that are queued after
    it.
    """

    declared: Declared | None = None
    call: str = ""  # How error texts name a call without a name.
    taking: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        assert self.declared is not None
        self.declared.last = weakref.ref(self)

    def leave(self) -> None:
        if not self.over:
            call_when_over(self, self.client.left.leave(self))

    def is_complete(self, connection: native.Connection) -> bool:
        return self.over or super().is_complete(connection)

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        """Does the same as Handle.take(). Timeout leaves the round open."""
        if timeout_s is None:
            self.taking.acquire()
        else:
            native_arguments.nanoseconds(timeout_s)  # Raises InvalidArgument for an invalid time.
            if not self.taking.acquire(timeout=min(timeout_s, _LOCK_S_MAX)):
                raise Timeout(
                    f"{self.title}: not complete after {timeout_s} s; synchronize() again"
                )
        try:
            if not self.over:
                self._take(connection, timeout_s)
            elif self.failure is not None:
                raise self.failure
        finally:
            self.taking.release()

    def _take(self, connection: native.Connection, timeout_s: float | None) -> None:
        try:
            Handle.take(self, connection, timeout_s)
        except Mismatch as mismatch:
            self.over = self.taken = True
            assert self.declared is not None
            self.failure = disagreed(self.client, self.declared, mismatch)
            raise self.failure from None
        except Timeout:
            raise
        except TalwegError as failure:
            self.failure = lost_rank(failure, self.call)
            self.over = True
            raise self.failure from None
        self.over = True


def repeat(client: Client, declared: Declared, address: int, priority: int, tensor: Any) -> Handle:
    """Does the same as start(), faster, for a settled name among all ranks and in place."""
    with _interrupts.held:  # A handle that an interrupt then drops is a round that is left.
        try:
            round_ = client.push_round(declared, address, priority)
        except Mismatch as mismatch:
            return failed(client, declared.name, disagreed(client, declared, mismatch))
        name, number = declared.name, declared.tensor
        return _SettledRound(
            client, number, round_, name, address, tensor, tensor, declared=declared
        )


@dataclass(eq=False)
class _OnGpu(Handle):
    """A round of a settled name whose tensor is on a GPU. `inner` knows how to take it."""

    inner: Handle | None = None
    declared: Declared | None = None

    def is_complete(self, connection: native.Connection) -> bool:
        assert self.inner is not None
        return self.inner.is_complete(connection)

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        assert self.inner is not None and self.declared is not None
        try:
            self.inner.take(connection, timeout_s)
        except Mismatch as mismatch:
            self.taken = True
            self.failure = disagreed(self.client, self.declared, mismatch)
            raise self.failure from None
        self.ranks_summed = self.inner.ranks_summed

    def order_result(self) -> None:
        assert self.inner is not None
        self.inner.order_result()


def on_gpu(client: Client, inner: Handle) -> Handle:
    """Returns the handle of a round from a GPU. Its Mismatch frees the name, as at other ranks."""
    declared = client.tensors.known(inner.name)
    if declared is None or not declared.signature:
        return inner
    return _OnGpu(
        client,
        inner.tensor,
        inner.round,
        inner.name,
        result=inner.result,
        keep=inner.keep,
        finish=inner.finish,
        inner=inner,
        declared=declared,
    )


def _push(client: Client, wire_name: str, brought: Brought, call: str = "") -> Handle:
    client.check_push(brought.declaration)
    try:
        declared = client.tensors.declare(wire_name, brought.declaration, brought.priority)
    except Mismatch as mismatch:
        return failed(client, wire_name, mismatch)
    return _push_declared(client, declared, brought, call)


def _push_declared(client: Client, declared: Declared, brought: Brought, call: str = "") -> Handle:
    declaration, factors, address = brought.declaration, brought.factors, brought.address
    scaled: Any = None
    if factors.prescale != 1.0:
        scaled, address = factors.scaled(client, declaration.dtype, address, declaration.nbytes)
    with _interrupts.held:  # A handle that an interrupt then drops is a round that is left.
        try:
            round_ = client.push_round(declared, address, brought.priority)
        except Mismatch as mismatch:
            return failed(client, declared.name, disagreed(client, declared, mismatch))
        scale = factors.after(client, declaration.dtype, brought.out_address, declaration.count)
        return _SettledRound(
            client,
            declared.tensor,
            round_,
            declared.name,
            brought.out_address,
            brought.result,
            (brought.keep, scaled),
            _both(scale, brought.finish),
            declared=declared,
            call=call,
        )


def failed(client: Client, name: str, mismatch: Mismatch) -> Handle:
    """Returns a handle that raises `mismatch`, as those of ranks that have pushed the round do."""
    return Handle(client, 0, 0, name, taken=True, failure=mismatch)


def _both(
    first: Callable[[], None] | None, then: Callable[[], None] | None
) -> Callable[[], None] | None:
    if first is None or then is None:
        return first or then

    def both() -> None:
        first()
        then()

    return both


def disagreed(client: Client, declared: Declared, mismatch: Mismatch) -> Mismatch:
    """Frees the name, because a round of its tensor has ended with `mismatch` at every rank: the
    next call is a collective. Returns the error for the caller. Waits for nothing.
    """
    client.tensors.free(declared.name)
    return Mismatch(f"{mismatch}; this rank gives {declared.declaration}: {_REMEDY}")


def _leave(client: Client, settled: Declared, brought: Brought, site: CallSite | None) -> Steps:
    """Tells in the tensor's next round how this rank uses the name. Raises Mismatch if others
    differ.
    """
    before, now = settled.declaration, brought.declaration
    zeros: np.ndarray = np.zeros(before.nbytes, np.uint8)
    address, lengths = int(zeros.ctypes.data), None
    if before.op is Op.BROADCAST:
        lengths = [0] * (before.root_rank == client.rank)
    elif client.names_watcher is None:  # Otherwise joined ranks give as much.
        lengths = [0]
    signature = now.signature_instead_of(before)
    round_ = client.connection.push_parts(
        settled.tensor, address, lengths, brought.priority, signature
    )

    def steps() -> Steps:
        try:
            yield Wait(settled.tensor, round_, address, zeros.size)
        except Mismatch as mismatch:
            where = "" if site is None else f" at {site}"
            raise Mismatch(
                f"{mismatch}; this rank gives {now}{where}, and the name was used for {before} "
                f"before: {_REMEDY}"
            ) from None

    return steps()


# ----- Calls that block -----


def before_call(
    client: Client,
    name: str | None,
    process_set: ProcessSet | None = None,
    timeout_s: float | None = None,
) -> float | None:
    """Prepares a blocking call for its push: see left_rounds.py. Returns the time left."""
    client.check_timeout(timeout_s)
    if not client.left or name is None:
        return timeout_s
    wire_name = Group(client, process_set, "push_pull").name_of(name)
    return client.left.wait_for(wire_name, timeout_s)


def before_calls(
    client: Client,
    name: str | None,
    count: int,
    process_set: ProcessSet | None,
    timeout_s: float | None,
) -> float | None:
    """Does the same as before_call() for a group: name.0, name.1 and so on."""
    client.check_timeout(timeout_s)
    if client.left and name is not None:
        for index in range(count):
            timeout_s = before_call(client, f"{name}.{index}", process_set, timeout_s)
    return timeout_s


# ----- Rounds that no thread waits for -----

# Copying a result takes less than this, in seconds.
_TAKE_S = 0.05


def call_when_over(handle: Handle, over: Callable[[Exception | None], None]) -> None:
    """Has another thread take the round when it is over, and call `over` with its error or None.

    Nobody else may synchronize the handle.
    """
    client = handle.client

    def take() -> None:
        try:
            client.synchronize(handle, _TAKE_S)
        except Timeout:
            watch()
        except Exception as failure:
            over(failure)
        else:
            over(None)

    def watch() -> None:
        handle.call_when_complete(take)

    watch()


# ----- Free names, and none -----


def start_nameless(
    client: Client,
    turn: str,
    group: Group,
    brought: Brought,
    of: str = "",
    grouped: NamelessGroup | None = None,
) -> Handle:
    """Starts a round of a call without a name; calls of one `turn` run one after another.

    Calls with different `of` have separate orders, each with its own `turn`s.
    """
    declaration = brought.declaration
    require(client, NAMELESS, declaration)

    call = f"{_call_of(declaration)} without a name"

    def push(brought: Brought) -> Handle:
        return client.start(
            None, declaration, lambda name: _push(client, name, brought, call), group.suffix, of
        )

    if client.is_alone:
        return push(brought)
    if not client.nodes_change:
        site = call_site()
        return _as_collective(client, turn, NAMELESS, group, brought, site=site, grouped=grouped)
    own = kept(client, brought)
    channel = channel_named(client, turn, group, NAMELESS)
    given = _given(client, own, call_site())
    how = (own.priority, own.is_async, lambda: push(own), grouped)
    return compared.start(client, channel, given, *how)


def compare_nameless(client: Client, brought: Brought) -> None:
    """Returns if all ranks' calls without a name bring the same. Else raises Mismatch."""
    if client.is_alone:
        return
    group = Group(client, None, "push_pull")
    channel = channel_named(client, "talweg.nameless.new", group, NAMELESS)
    given = _given(client, brought, call_site())
    job = Job(channel, [lambda: compared.compare(channel, given, brought.priority)])
    channel.submit(job, is_async=False)
    channel.finish(job)
    if job.failure is not None:
        raise job.failure


def _call_of(declaration: Declaration) -> str:
    return "broadcast" if declaration.op is Op.BROADCAST else "push_pull"


def _gives(client: Client, declaration: Declaration) -> bool:
    return declaration.op is not Op.BROADCAST or declaration.root_rank == client.rank


def kept(client: Client, brought: Brought) -> Brought:
    """Returns `brought` with bytes that stay unchanged until the result is there."""
    if brought.stays or not _gives(client, brought.declaration):
        return brought
    own: np.ndarray = np.empty(brought.declaration.nbytes, np.uint8)
    ctypes.memmove(own.ctypes.data, brought.address, own.size)
    return replace(brought, address=int(own.ctypes.data), keep=(brought.keep, own), stays=True)


def _given(client: Client, brought: Brought, site: CallSite | None) -> Given:
    """Returns what this rank brings, in the form that a collective takes."""
    declaration = brought.declaration
    reduces = declaration.op is not Op.BROADCAST
    return Given(
        ALL_REDUCE if reduces else BROADCAST,
        declaration.root_rank,
        Rows(declaration.dtype.name.lower(), _row_shape(brought), declaration.nbytes),
        [1] * _gives(client, declaration),
        brought.address,
        brought.keep,
        lambda rows, counts: (brought.result, brought.out_address),
        declaration.op,
        declaration.dtype,
        brought.factors,
        site=site,
        call=_call_of(declaration),
    )


def _as_collective(
    client: Client,
    channel_name: str,
    title: str,
    group: Group,
    brought: Brought,
    leaving: Steps | None = None,
    *,
    site: CallSite | None,
    grouped: NamelessGroup | None = None,
) -> JobHandle:
    given = _given(client, kept(client, brought), site)
    channel = channel_named(client, channel_name, group, title, in_one=True)
    steps = partial(_call, leaving, channel, given, brought.priority)
    job = Job(channel, [steps]) if grouped is None else grouped.within(channel, given, steps)
    channel.submit(job, brought.is_async)
    if grouped is not None:
        grouped.see_to(job)
    return JobHandle(
        client,
        0,
        0,
        title,
        result=brought.result,
        finish=brought.finish,
        ranks_summed=group.size,
        job=job,
        call=given.call,
    )


def _row_shape(brought: Brought) -> tuple[int, ...]:
    shape = brought.declaration.shape
    if shape is not None and len(shape) <= DIMENSIONS_MAX:
        return shape
    if 0 < len(brought.shape) <= DIMENSIONS_MAX:
        return brought.shape
    return (brought.declaration.count,)


def _call(leaving: Steps | None, channel: CallChannel, given: Given, priority: int) -> Steps:
    if leaving is not None:
        try:
            yield from leaving
        except TalwegError:
            channel.end_before_control_round()
            raise
    return (yield from one_call.steps(channel, given, priority))
