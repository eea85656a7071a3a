# SPDX-License-Identifier: Apache-2.0
"""Collectives of any shape, for every framework: docs/collectives.md says what each does.

Calls without a name belong together by their order, which is the same at every rank of a group;
calls with a name by their order under that name. Both is a *channel*: its calls run one after
another, those of different channels at once.

A call begins with a round of the channel's control tensor, an all_gather: each rank says what it
calls and how long its parts are, and gives its data in the same round where that is 4 KiB or less.
All ranks compare what the others have said, and all come to the same answer: Mismatch. The data of
a reduction leaves together with the control round, in a round of its own: all ranks know where it
goes, since they all give the same. If they turn out to differ each rank also takes part in the
rounds that the others have begun, with nothing, so that these end. Longer copies follow when all
ranks know how long. So a call takes

    copies of at most 4 KiB a rank       1 round
    all reductions                       2 rounds at once
    other copies                         2 rounds, one after the other
    what is longer than 32 MiB           1 round for each 8 MiB of all parts that are copied, or for
                                         each 16 MiB that are reduced

The data goes through tensors whose lengths are powers of two, with parts that are shorter. A
channel has few of them, so memory stays flat however often shapes change.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from talweg._call_site import call_site
from talweg._client import Client, Handle
from talweg._client.left_rounds import finish_call
from talweg._collectives.call_channel import CallChannel, channel_of
from talweg._collectives.channels import Job, Steps, Wait
from talweg._collectives.kinds import (
    ALL_GATHER,
    ALL_GATHER_INTO,
    ALL_GATHER_OF_SOME,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    GATHER,
    INLINE_BYTES,
    JOINED,
    NO_SLOT,
    OWN,
    REDUCE,
    REDUCE_SCATTER,
    ROOT,
    ROW,
    SCATTER,
    SEND,
    WANTS_SLOT,
    WHOLE,
    Given,
    Kind,
    Lane,
    Rows,
    capacity_of,
    lane_of,
    split_evenly,
)
from talweg._collectives.process_sets import Group
from talweg._collectives.words import (
    Caller,
    Said,
    block,
    check_alike,
    end_apart,
    got_alike,
    got_parts,
    has_joined,
    with_stand_ins,
)
from talweg._declaration import DType, Op
from talweg._library import native, native_arguments
from talweg.errors import Aborted, Mismatch, TalwegError, Timeout

# What a rank tells of a call that does not fit: how long a text, which begins with the name of the
# function, and how long others wait for it.
_SITE_BYTES, _CALL_BYTES, _SITES_S = 512, 64, 1.0


def job_of(channel: CallChannel, calls: Sequence[Given], priority: int) -> Job:
    """Calls that have one handle."""
    ready = partial(can_begin, channel, calls[0]) if calls else lambda: True
    return Job(channel, [partial(steps, channel, given, priority) for given in calls], ready)


def can_begin(channel: CallChannel, given: Given) -> bool:
    """Whether the call's data is there, and the tensors that its first rounds go through are
    declared.
    """
    if given.is_ready is not None:
        try:
            if not given.is_ready(0.0):
                return False
        except TalwegError:
            return True  # The call begins, and ends with it.
    if not given.kind.reduces or given.rows is None:
        return True
    lanes = [_lane_of_given(channel, given, turn) for turn in (0, 1)]
    return all(lane is None or channel.has_lane(lane) for lane in lanes)


def _lane_of_given(
    channel: CallChannel, given: Given, turn: int, slot: int = NO_SLOT
) -> Lane | None:
    """Where the data of a reduction goes that this rank makes; None: in several rounds, or none."""
    assert given.rows is not None
    longest = max(given.part_rows) * given.rows.row_bytes
    of = (given.kind, given.dtype, given.op, given.root_rank, longest, channel.group.size)
    return lane_of(*of, channel.in_one, slot, turn)


@dataclass(eq=False)
class JobHandle(Handle):
    """The handle of a Job."""

    job: Job | None = None
    # Makes of the calls' results what the caller gets.
    shape: Callable[[list[Any]], Any] = field(default=lambda results: results[0])

    def is_complete(self, connection: native.Connection) -> bool:
        assert self.job is not None
        return self.job.channel.look(self.job)

    def waits_for(self) -> str:
        assert self.job is not None
        return self.job.channel.waits_for()

    def call_when_complete(self, call: Callable[[], None]) -> None:
        assert self.job is not None
        self.job.channel.call_when_done(self.job, call)

    def leave(self) -> None:
        """Other ranks may need more of the call yet, where they turn out to call something else."""
        assert self.job is not None
        self.job.channel.call_when_done(self.job, lambda: None)

    @property
    def title(self) -> str:
        assert self.job is not None
        channel = self.job.channel
        name = channel.title if isinstance(channel, CallChannel) else channel.name
        return f"'{name}{channel.group.suffix}'"

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        native_arguments.nanoseconds(timeout_s)  # Refuses what is no time.
        assert self.job is not None
        end = None if timeout_s is None else time.monotonic() + min(timeout_s, 1e8)
        if not self.job.channel.finish(self.job, end):
            who = self.waits_for() if timeout_s else ""
            late = f"; it still waits for {who}" if who else ""
            raise Timeout(
                f"{self.title}: not complete after {timeout_s} s; synchronize() again{late}"
            )
        if self.job.failure is not None:
            raise self.job.failure
        self.result = self.shape(self.job.results)


def steps(channel: CallChannel, given: Given, priority: int) -> Steps:
    """One call: yields whenever it waits; returns its result."""
    client, group, kind = channel.client, channel.group, given.kind
    connection = client.connection
    if given.is_ready is not None:
        yield Wait(0, 0, 0, 0, is_ready=given.is_ready)
    row_bytes = given.rows.row_bytes if given.rows is not None else 0
    own_bytes = sum(given.part_rows) * row_bytes
    source, factors = given.address, given.factors
    inline = own_bytes <= INLINE_BYTES and (not kind.reduces or channel.holds_own())
    if given.slot == WANTS_SLOT:
        slots = channel.slots if channel.holds_own() and not inline else None
        given.slot = slots.number_of(given) if slots is not None else NO_SLOT
    said = words = block(given)
    if kind.reduces and factors.prescale != 1.0:
        given.keep, source = factors.scaled(client, given.dtype, given.address, own_bytes)
    one_round = channel.one_round(given, words)
    if inline:
        said += ctypes.string_at(source, own_bytes)
    client.count_pushed_bytes(own_bytes)
    control = channel.control()
    round_ = given.pushed or connection.push_parts(control, said, [len(said)], priority)
    own = [count * row_bytes for count in given.part_rows]
    turn = channel.turn_of(round_)
    data = _Data(channel, given, source, own, priority, turn)
    if kind.reduces and not inline:
        data.push(given.slot)
    all_pushed = data.lane is not None or (inline and kind.equal)
    try:
        yield Wait(control, round_, channel.said_at, channel.said.size, not all_pushed)
    except Aborted:
        if data.lane is not None and data.failure is None:
            yield from _drop(channel, data.lane, data.round)
        raise
    if data.failure is not None:
        raise data.failure

    if one_round is not None:
        assert given.rows is not None
        result, out = given.allocate(given.rows, one_round.got_rows)
        if one_round.finish(connection, control, out):
            finish = factors.after(
                client, given.dtype, out, sum(one_round.got_rows) * row_bytes // given.dtype.nbytes
            )
            if finish is not None:
                finish()
            return result
    every: list[Said] | None = None
    are_alike = channel.same(words)
    if data.lane is not None and are_alike:
        assert given.rows is not None
        rows = given.rows
        got_rows = got_alike(given, group)
    else:
        told = every = channel.read_said(turn)
        some_joined = has_joined(told)
        are_apart = False
        try:
            if some_joined:
                every = with_stand_ins(channel.title, group, told)
            rows = check_alike(channel.title, group, every)
        except Mismatch:
            are_apart = True
        if are_apart:
            yield from _settle(channel, told, priority, data)
            who = yield from callers(channel, given, told)
            if some_joined:
                every = with_stand_ins(channel.title, group, told, who)
            try:
                rows = check_alike(channel.title, group, every, None, who)  # Raises.
            except Mismatch as mismatch:
                mismatch.ends_all = end_apart(told)
                raise
        if any(said.lane != data.lane for said in every):
            yield from _leave_slots(channel, every, priority, data)
        got = got_parts(given, group, every)
        got_rows = [every[place].part_rows[part] for place, part in got]
        if some_joined and kind.reduces and data.lane is None:
            # Ranks that have joined could not give their zeros in the control round.
            data.push(NO_SLOT)
            if data.failure is not None:
                raise data.failure
        if data.lane is not None:
            every = None
    got_bytes = [count * rows.row_bytes for count in got_rows]
    try:
        result, out = given.allocate(rows, got_rows)
    except Exception:  # No memory, or no such dtype: other ranks get their results all the same.
        if data.lane is not None:
            yield from _drop(channel, data.lane, data.round)
        elif every is not None and not all(said.inline for said in every):
            nbytes = _largest(every) * rows.row_bytes
            yield from carry(channel, given, priority, turn, source, own, None, got_bytes, nbytes)
        raise
    if every is not None and all(said.inline for said in every):
        for (place, part), nbytes in zip(got, got_bytes):
            before = sum(every[place].part_rows[:part]) * rows.row_bytes
            ctypes.memmove(out, channel.said_at + every[place].data_at + before, nbytes)
            out += nbytes
        return result
    if data.lane is not None:
        room = (0, 0) if data.lies_there else (out, sum(got_bytes))
        tensor = channel.lane_tensor(data.lane)
        yield Wait(tensor, data.round, *room, False, next_may_begin=channel.overlaps)
    elif every is not None:
        nbytes = _largest(every) * rows.row_bytes
        yield from carry(channel, given, priority, turn, source, own, out, got_bytes, nbytes)
    if given.slot == WANTS_SLOT and are_alike and channel.slots is not None:
        channel.slots.agree(given)
    finish = factors.after(client, given.dtype, out, sum(got_bytes) // given.dtype.nbytes)
    if finish is not None:
        finish()
    return result


@dataclass
class _Data:
    """A reduction's data, which leaves beside the control round."""

    channel: CallChannel
    given: Given
    source: int
    lengths: list[int]
    priority: int
    turn: int
    lane: Lane | None = None  # None: it has not left; it takes several rounds, or none.
    round: int = 0
    lies_there: bool = False  # The result comes where the data lies.
    failure: TalwegError | None = None  # The control round is taken all the same.

    def push(self, slot: int) -> None:
        """Pushes it through the slot's tensor, NO_SLOT: through one for all of its length."""
        channel, given = self.channel, self.given
        connection = channel.client.connection
        self.lies_there = False
        self.lane = lane = _lane_of_given(channel, given, self.turn, slot)
        if lane is None:
            return
        try:
            if lane.slot > 0 and channel.slots is not None:
                self.round, self.lies_there = channel.slots.push(lane.slot, given)
            else:
                tensor = channel.lane_tensor(lane)
                self.round = connection.push_parts(tensor, self.source, self.lengths, self.priority)
        except TalwegError as error:
            self.failure = error


def _leave_slots(channel: CallChannel, every: list[Said], priority: int, data: _Data) -> Steps:
    """Ranks call the same, but bring tensors of several slots, or some of none: the data goes once
    more without any, and nobody uses these again.
    """
    yield from _settle(channel, every, priority, data)
    for number in {said.lane.slot for said in every if said.lane is not None} - {0}:
        assert channel.slots is not None
        channel.slots.retire(number)
    data.push(NO_SLOT)
    if data.failure is not None:
        raise data.failure


def _lane_of_said(channel: CallChannel, said: Said, turn: int) -> Lane:
    """Where the data of a reduction goes, also if it would fit into the control round."""
    assert said.rows is not None
    nbytes = max(said.part_rows) * said.rows.row_bytes
    dtype, op, size = DType(said.dtype), Op(said.op), channel.group.size
    of = (said.kind, dtype, op, 0, nbytes, size, channel.in_one)
    lane = said.lane or lane_of(*of, turn=turn)
    assert lane is not None
    return lane


def steps_of_joined(channel: CallChannel) -> Steps:
    """What a rank does in the others' next call that has joined and makes none; it has no result.

    It gives zeros to a reduction, and no rows to an all_gather that goes on without it.
    """
    connection, group = channel.client.connection, channel.group
    given = Given(JOINED, -1, None, [], 0, None, lambda rows, counts: (None, 0))
    words = block(given)
    control = channel.control()
    round_ = connection.push_parts(control, words, [len(words)], native_arguments.NOBODY_WAITS)
    yield Wait(control, round_, channel.said_at, channel.said.size)
    turn = channel.turn_of(round_)
    told = channel.read_said(turn)
    if all(said.kind is JOINED for said in told):
        return
    try:
        every = with_stand_ins(channel.title, group, told)
    except Mismatch:  # The others raise it.
        yield from _settle(channel, told, 0, _Data(channel, given, 0, [], 0, turn))
        yield from callers(channel, given, told)
        return
    stand_in = every[group.place]
    assert stand_in.rows is not None
    row_bytes = stand_in.rows.row_bytes
    own = [count * row_bytes for count in stand_in.part_rows]
    if stand_in.kind.reduces:
        if sum(own) > 0:
            lane = _lane_of_said(channel, stand_in, turn)
            zeros: np.ndarray = np.zeros(sum(own), np.uint8)
            address = int(zeros.ctypes.data)
            tensor = channel.lane_tensor(lane)
            carried = connection.push_parts(tensor, address, own)
            yield Wait(tensor, carried, address, zeros.size, False)
    elif not all(said.inline for said in every):
        got = [said.part_rows[0] * row_bytes for said in every]
        scratch: np.ndarray = np.empty(sum(got), np.uint8)
        given = Given(stand_in.kind, 0, stand_in.rows, [0], 0, None, lambda rows, counts: (None, 0))
        out = int(scratch.ctypes.data)
        yield from carry(channel, given, 0, turn, out, own, out, got, max(got))


def _settle(channel: CallChannel, every: list[Said], priority: int, data: _Data) -> Steps:
    """Ends the rounds of data that ranks have begun whose calls do not fit together.

    Every rank takes part in each of them, with nothing where it has not begun it. Nobody looks at
    what they come to: most end with a Mismatch of their own.
    """
    connection, size = channel.client.connection, channel.group.size
    for lane in dict.fromkeys(said.lane for said in every if said.lane is not None):
        round_ = data.round
        if lane != data.lane:
            parts = [0] * lane.kind.parts_given(channel.group.place, 0, size)
            round_ = connection.push_parts(channel.lane_tensor(lane), 0, parts, priority)
        yield from _drop(channel, lane, round_)


def callers(channel: CallChannel, given: Given, told: Sequence[Said]) -> Steps:
    """After calls that do not fit together: what each rank of the group has called, and where.

    A rank of which that is not known is taken to call as this one does, if its call is of the same
    kind.
    """
    tellings = yield from _exchange_callers(channel, given)
    own = given.call
    unknown = [Caller(own if said.kind is given.kind else "") for said in told]
    return [
        Caller(telling.call or other.call, telling.site)
        for telling, other in zip(tellings, unknown)
    ] or unknown


def _exchange_callers(channel: CallChannel, given: Given) -> Steps:
    """What each rank says of itself; nothing of those that say nothing.

    A rank may be busy elsewhere, as its call needs nobody until it is waited for. So the others wait
    for a moment only. A rank tells before it begins its next call of the channel, so what it has told
    of the last one is there by the next one at the latest.
    """
    sites, size = channel.sites, channel.group.size
    if sites.has_failed:
        return []
    every: np.ndarray = np.zeros(size * _SITE_BYTES, np.uint8)
    place = (int(every.ctypes.data), every.size, False)
    shares, until = (OWN, WHOLE), time.monotonic() + _SITES_S
    call = (given.site.call if given.site is not None else "") or given.call
    where = "" if given.site is None else str(given.site)
    text = call.encode()[:_CALL_BYTES].ljust(_CALL_BYTES, b"\0")
    text += where.encode()[-(_SITE_BYTES - _CALL_BYTES) :]
    try:
        tensor = channel.declare(
            f"{channel.name}.sites", DType.U8, Op.BROADCAST, shares, 0, _SITE_BYTES
        )
        if sites.left_round:
            yield Wait(tensor, sites.left_round, *place, until=until)
        own = text.ljust(_SITE_BYTES, b"\0")
        round_ = channel.client.connection.push_parts(tensor, own, [len(own)])
        sites.left_round = round_
    except TalwegError:
        sites.has_failed = True
        return []
    try:
        yield Wait(tensor, round_, *place, until=until)
    except TalwegError:
        return []
    sites.left_round = 0
    rows = [row.tobytes() for row in every.reshape(size, _SITE_BYTES)]
    return [Caller(_read(row[:_CALL_BYTES]), _read(row[_CALL_BYTES:])) for row in rows]


def _read(text: bytes) -> str:
    return text.rstrip(b"\0").decode(errors="replace")


def _drop(channel: CallChannel, lane: Lane, round_: int) -> Steps:
    """Ends a round of data whose result nobody wants."""
    nothing: np.ndarray = np.empty(lane.capacity_bytes, np.uint8)
    with contextlib.suppress(Mismatch, Aborted):
        yield Wait(channel.lane_tensor(lane), round_, int(nothing.ctypes.data), nothing.size)


def _largest(every: list[Said]) -> int:
    """The rows of the longest part that a rank gives."""
    return max((max(said.part_rows, default=0) for said in every), default=0)


def _starts(lengths: Sequence[int], first: int) -> list[int]:
    """Where each of parts begins that lie one after another."""
    starts = []
    for length in lengths:
        starts.append(first)
        first += length
    return starts


def carry(
    channel: CallChannel,
    given: Given,
    priority: int,
    turn: int,
    source: int,
    own: list[int],
    out: int | None,
    got: list[int],
    largest: int,
) -> Steps:
    """Parts of `own` bytes from `source` to the other ranks, of `got` bytes from them to `out`.

    None: to nowhere.
    """
    if largest == 0:
        return
    connection, size = channel.client.connection, channel.group.size
    capacity = capacity_of(given.kind, largest, size, channel.holds_own(), channel.in_one)
    root = given.root_rank if ROOT in (given.kind.gives, given.kind.gets) else 0
    turns = (turn, 1 - turn) if channel.overlaps else (turn,)
    lanes = [Lane(given.kind, given.dtype, given.op, root, capacity, turn=each) for each in turns]
    sources = _starts(own, source)
    nowhere: np.ndarray = np.empty(capacity * len(got) if out is None else 0, np.uint8)
    targets = _starts([capacity] * len(got), int(nowhere.ctypes.data))
    at_home = None
    if out is not None:
        targets = _starts(got, out)
        at_home = _own_part(given.kind, channel.group.place, own, got)
    waits: deque[Wait] = deque()
    try:
        for piece, begin in enumerate(range(0, largest, capacity)):
            if len(waits) == len(lanes):
                yield waits.popleft()
            tensor = channel.lane_tensor(lanes[piece % len(lanes)])
            pushed = [min(max(length - begin, 0), capacity) for length in own]
            places = [start + begin for start in sources]
            home = 0 if at_home is None else targets[at_home] + begin
            round_ = connection.push_places(tensor, places, pushed, home, priority)
            rooms = [min(max(length - begin, 0), capacity) for length in got]
            into = ([start + begin * (out is not None) for start in targets], rooms)
            waits.append(Wait(tensor, round_, 0, 0, places=into))
        while waits:
            last = waits.popleft()
            last.pushes_more, last.next_may_begin = False, channel.overlaps
            yield last
    except TalwegError:
        while waits:  # No round stays open.
            with contextlib.suppress(TalwegError):
                yield waits.popleft()
        raise


def _own_part(kind: Kind, place: int, own: list[int], got: list[int]) -> int | None:
    """Which of the parts that this rank gets is its own."""
    if not own or not got:
        return None
    return place if kind.gives in (OWN, ROW) else 0


def start(
    client: Client,
    name: str | None,
    group: Group,
    calls: Sequence[Given],
    priority: int,
    shape: Callable[[list[Any]], Any],
    is_async: bool = True,
) -> JobHandle:
    """Starts calls; they have one handle. `is_async`: it may not be waited for soon."""
    native_arguments.check_name_and_priority("none" if name is None else name, priority)
    channel = channel_of(client, name, group)
    site = call_site()
    for call in calls:
        call.site = site
    job = job_of(channel, calls, priority)
    channel.submit(job, is_async)
    return JobHandle(client, 0, 0, channel.name, job=job, shape=shape)


def run(
    client: Client,
    name: str | None,
    group: Group,
    calls: Sequence[Given],
    priority: int,
    shape: Callable[[list[Any]], Any],
    timeout_s: float | None,
) -> Any:
    """Runs calls on this thread."""
    client.check_timeout(timeout_s)
    handle = start(client, name, group, calls, priority, shape, is_async=False)
    return finish_call(client, handle, timeout_s)


__all__ = [
    "ALL_GATHER",
    "ALL_GATHER_INTO",
    "ALL_GATHER_OF_SOME",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "BARRIER",
    "BROADCAST",
    "GATHER",
    "REDUCE",
    "REDUCE_SCATTER",
    "SCATTER",
    "SEND",
    "Given",
    "JobHandle",
    "Kind",
    "Rows",
    "TalwegError",
    "run",
    "split_evenly",
    "start",
]
