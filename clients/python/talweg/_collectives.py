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
    what is longer than 32 MiB           1 round more for each further 32 MiB of all parts

The data goes through tensors whose lengths are powers of two, with parts that are shorter. A
channel has few of them, so memory stays flat however often shapes change.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from talweg import _native, _native_arguments
from talweg._channels import Channel, Job, Steps, Wait
from talweg._client import Client, Handle
from talweg._declaration import DType, Op
from talweg._process_sets import Group
from talweg._scaling import NO_FACTORS, Factors
from talweg.errors import Aborted, Mismatch, TalwegError, Timeout

_WHOLE, _ROOT, _OWN, _ROW, _COLUMN = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Kind:
    """A collective; the shares are those of talweg.h."""

    name: str
    number: int
    gives: int
    gets: int
    # Whether all ranks give tensors of the same shape, or the same but for the first dimension.
    equal: bool = False

    @property
    def reduces(self) -> bool:
        return self.gives == _WHOLE

    def parts_given(self, place: int, root: int, size: int) -> int:
        if self.gives == _ROOT and place != root:
            return 0
        return size if self.gets in (_COLUMN, _OWN) else 1

    def part_count(self, size: int) -> int:
        """How many parts a tensor has in all."""
        if self.gives == _ROW:
            return size * size
        return size if _OWN in (self.gives, self.gets) else 1


ALL_GATHER = Kind("all_gather", 1, _OWN, _WHOLE)
ALL_GATHER_INTO = Kind("all_gather_into", 2, _OWN, _WHOLE, equal=True)
REDUCE_SCATTER = Kind("reduce_scatter", 3, _WHOLE, _OWN, equal=True)
ALL_TO_ALL = Kind("all_to_all", 4, _ROW, _COLUMN)
GATHER = Kind("gather", 5, _OWN, _ROOT)
SCATTER = Kind("scatter", 6, _ROOT, _OWN)
REDUCE = Kind("reduce", 7, _WHOLE, _ROOT, equal=True)
SEND = Kind("send", 8, _ROOT, _WHOLE)
ALL_REDUCE = Kind("all_reduce", 9, _WHOLE, _WHOLE, equal=True)
BROADCAST = Kind("broadcast", 10, _ROOT, _WHOLE)
BARRIER = Kind("barrier", 11, _OWN, _WHOLE, equal=True)
_KINDS = {
    kind.number: kind
    for kind in (
        ALL_GATHER,
        ALL_GATHER_INTO,
        REDUCE_SCATTER,
        ALL_TO_ALL,
        GATHER,
        SCATTER,
        REDUCE,
        SEND,
        ALL_REDUCE,
        BROADCAST,
        BARRIER,
    )
}

# kind, op, dimensions of a row, dtype of a reduction; root; bytes of a row; dtype; the row's shape; rows. Then
# the rows of each part that the rank gives, 8 bytes each, then its data.
_HEADER = struct.Struct("<BBBBiq16s11qq")
_DIMENSIONS_MAX = 11
_ALIKE_BYTES = _HEADER.size - 8  # All but the rows.
_CALL_BYTES = 8  # The kind, and what is not of the tensor.
_ANY_TENSOR = 255  # Instead of the number of dimensions: the rank takes what the root gives.

_INLINE_BYTES = 4096
_CAPACITY_BYTES_MIN = 4096
# What all parts of a tensor take together.
_TENSOR_BYTES_MAX = 32 << 20


def split_evenly(rows: int, parts: int) -> list[int]:
    """The rows of each part; the first ones have the remainder."""
    each, more = divmod(rows, parts)
    return [each + (part < more) for part in range(parts)]


@dataclass(frozen=True)
class Rows:
    """What a rank's tensor is: rows of one shape. A tensor that goes whole is one row."""

    dtype: str
    row_shape: tuple[int, ...]
    row_bytes: int


@dataclass
class Given:
    """What one rank brings to a call."""

    kind: Kind
    root_rank: int
    rows: Rows | None  # None: it takes what the root gives.
    part_rows: list[int]  # How many each part has that it gives.
    address: int
    keep: Any
    # Makes the result of rows of the parts that this rank gets; returns it and its address.
    allocate: Callable[[Rows, list[int]], tuple[Any, int]]
    # For reductions.
    op: Op = Op.BROADCAST
    dtype: DType = DType.U8
    factors: Factors = NO_FACTORS


class Lane(NamedTuple):
    """Which tensor the data of calls goes through."""

    kind: Kind
    dtype: DType
    op: Op
    root: int
    capacity_bytes: int  # A part's.


@dataclass
class _Said:
    """What one rank has said in the control round."""

    kind: Kind
    alike: bytes
    total_rows: int
    rows: Rows | None
    part_rows: Sequence[int]
    data_at: int
    inline: bool
    op: int
    root_rank: int
    lane: Lane | None = None  # Where its data has gone already.

    def __str__(self) -> str:
        text = self.kind.name
        if self.kind.reduces:
            text += f" {Op(self.op).name.lower()}"
        if self.rows is not None:
            shape = list(self.rows.row_shape)
            if self.kind in (REDUCE, SEND, ALL_REDUCE, BROADCAST):  # One row each.
                text += f" of {self.rows.dtype}{shape}"
            elif self.kind.equal:
                text += f" of {self.rows.dtype}{[self.total_rows, *shape]}"
            else:
                text += f" of {self.rows.dtype} rows of {shape}"
        if _ROOT in (self.kind.gives, self.kind.gets):
            text += f" with root {self.root_rank}"
        return text


class CallChannel(Channel):
    """A channel of collectives: its tensors, and what the ranks say to each other."""

    def __init__(
        self, client: Client, name: str, group: Group, title: str, in_one: bool = False
    ) -> None:
        """`title` is what texts of errors call it. `in_one`: what is longer than 32 MiB goes in one
        round all the same, through a tensor of that very length.
        """
        super().__init__(client, name, group)
        self.title = title
        self.in_one = in_one
        size = group.size
        capacity = _HEADER.size + 8 * size + _INLINE_BYTES
        self._control_bytes = -(-capacity // 64) * 64
        self.said: np.ndarray = np.empty(size * self._control_bytes, np.uint8)
        self.said_at = int(self.said.ctypes.data)

    def control(self) -> int:
        """The tensor in which ranks say what they call."""
        shares = (_OWN, _WHOLE)
        return self.declare(self.name, DType.U8, Op.BROADCAST, shares, 0, self._control_bytes)

    def lane_tensor(self, lane: Lane) -> int:
        """The tensor for a lane."""
        kind, dtype, op, root, capacity_bytes = lane
        words = f"{kind.gives}{kind.gets}.{dtype.name}.{op.name}.{root}"
        return self.declare(
            f"{self.name}.{words}.{capacity_bytes}".lower(),
            dtype,
            op,
            (kind.gives, kind.gets),
            root,
            capacity_bytes // dtype.nbytes,
        )

    def same(self, block: bytes) -> bool:
        """Whether every rank has said this."""
        nbytes = len(block) * self.group.size
        return self.said[:nbytes].tobytes() == block * self.group.size


def channel_of(client: Client, name: str | None, group: Group) -> CallChannel:
    """The channel of calls of that name, or without one."""
    own = "talweg.collectives" if name is None else f"{name}.collective"
    return channel_named(client, own, group, own if name is None else name)


def channel_named(
    client: Client, name: str, group: Group, title: str, in_one: bool = False
) -> CallChannel:
    """The channel with that name of its own, as CallChannel() makes it."""
    key = (name, group.ranks)
    with client.channels_lock:
        channel: CallChannel | None = client.channels.get(key)
        if channel is None:
            channel = client.channels[key] = CallChannel(client, name, group, title, in_one)
    return channel


def job_of(channel: CallChannel, calls: Sequence[Given], priority: int) -> Job:
    """Calls that have one handle."""
    return Job(channel, [partial(steps, channel, given, priority) for given in calls])


@dataclass(eq=False)
class JobHandle(Handle):
    """The handle of a Job."""

    job: Job | None = None
    # Makes of the calls' results what the caller gets.
    shape: Callable[[list[Any]], Any] = field(default=lambda results: results[0])

    def is_complete(self, connection: _native.Connection) -> bool:
        assert self.job is not None
        return self.job.channel.look(self.job)

    def take(self, connection: _native.Connection, timeout_s: float | None) -> None:
        _native_arguments.nanoseconds(timeout_s)  # Refuses what is no time.
        assert self.job is not None
        end = None if timeout_s is None else time.monotonic() + min(timeout_s, 1e8)
        if not self.job.channel.finish(self.job, end):
            raise Timeout(f"{self.name}: not complete after {timeout_s} s; synchronize() again")
        if self.job.failure is not None:
            raise self.job.failure
        self.result = self.shape(self.job.results)


def _header(given: Given, total_rows: int) -> bytes:
    rows = given.rows
    if rows is None:
        kind = given.kind.number
        dims = [0] * _DIMENSIONS_MAX
        return _HEADER.pack(kind, given.op, _ANY_TENSOR, 0, given.root_rank, 0, b"", *dims, 0)
    dims = [*rows.row_shape, *[0] * (_DIMENSIONS_MAX - len(rows.row_shape))]
    return _HEADER.pack(
        given.kind.number,
        given.op,
        len(rows.row_shape),
        given.dtype if given.kind.reduces else 0,
        given.root_rank,
        rows.row_bytes,
        rows.dtype.encode()[:16],
        *dims,
        total_rows,
    )


def _read(said: np.ndarray, group: Group, in_one: bool = False) -> list[_Said]:
    """What each rank of the group has said."""
    at, every = 0, []
    view = memoryview(said.data)
    for place in range(group.size):
        number, op, dimensions, wire, root_rank, row_bytes, dtype, *dims = _HEADER.unpack_from(
            view, at
        )
        kind = _KINDS[number]
        rows = None
        if dimensions != _ANY_TENSOR:
            shape = tuple(dims[:dimensions])
            rows = Rows(dtype.rstrip(b"\0").decode(), shape, row_bytes)
        alike = bytes(view[at : at + _ALIKE_BYTES + (8 if kind.equal else 0)])
        root = group.ranks.index(root_rank) if root_rank in group.ranks else -1
        parts = kind.parts_given(place, root, group.size)
        at += _HEADER.size
        part_rows = struct.unpack_from(f"<{parts}q", view, at)
        at += 8 * parts
        nbytes = sum(part_rows) * row_bytes
        inline = not kind.reduces and nbytes <= _INLINE_BYTES
        lane = None
        if kind.reduces:
            largest = max(part_rows) * row_bytes
            lane = _lane_of(kind, DType(wire), Op(op), root_rank, largest, group.size, in_one)
        every.append(_Said(kind, alike, dims[-1], rows, part_rows, at, inline, op, root_rank, lane))
        if inline:
            at += nbytes
    return every


def _check_alike(channel: CallChannel, every: list[_Said]) -> Rows:
    """Mismatch if ranks call different things, at every rank alike. Returns what the tensor is."""
    first = every[0]
    reference = first
    for said in every:
        if said.rows is not None:
            reference = said
            break
    for one, place in ((first, 0), (reference, every.index(reference))):
        for other, said in enumerate(every):
            length = _CALL_BYTES if one.rows is None or said.rows is None else len(one.alike)
            same = said.alike[:length] == one.alike[:length]
            if length == _CALL_BYTES:
                same = (said.kind, said.root_rank) == (one.kind, one.root_rank)
            if not same:
                ranks = channel.group.ranks
                raise Mismatch(
                    f"'{channel.title}{channel.group.suffix}': rank {ranks[place]} calls {one}, but "
                    f"rank {ranks[other]} calls {said}: all ranks must call the same collectives, "
                    "of tensors that fit together, in the same order"
                )
    assert reference.rows is not None
    return reference.rows


def _got(given: Given, group: Group, every: list[_Said]) -> list[tuple[int, int]]:
    """The parts that this rank gets: who gives it, and which of that rank's it is."""
    kind = given.kind
    if kind.gets == _ROOT and given.root_rank != group.ranks[group.place]:
        return []
    if kind.reduces:
        return [(group.place, group.place if kind.gets == _OWN else 0)]
    if kind.gives == _ROOT:
        return [(group.ranks.index(given.root_rank), group.place if kind.gets == _OWN else 0)]
    if kind.gives == _ROW:
        return [(place, group.place) for place in range(group.size)]
    return [(place, 0) for place in range(group.size)]


def _got_of_reduction(given: Given, group: Group) -> list[int]:
    """The rows of the parts that this rank gets, where all ranks give the same."""
    if given.kind.gets == _ROOT and given.root_rank != group.ranks[group.place]:
        return []
    return [given.part_rows[group.place if given.kind.gets == _OWN else 0]]


def _capacity_of(kind: Kind, largest: int, size: int, in_one: bool = False) -> int:
    """How much a part of the tensor has room for that takes parts of so many bytes."""
    most = _TENSOR_BYTES_MAX // kind.part_count(size)
    if in_one and largest > most:
        return largest
    capacity = _CAPACITY_BYTES_MIN
    while capacity < largest and capacity * 2 <= most:
        capacity *= 2
    return capacity


def _lane_of(
    kind: Kind, dtype: DType, op: Op, root_rank: int, largest: int, size: int, in_one: bool
) -> Lane | None:
    """Where parts go of which the longest has so many bytes; None: they need several rounds, or
    none.
    """
    capacity = _capacity_of(kind, largest, size, in_one)
    if not 0 < largest <= capacity:
        return None
    root = root_rank if _ROOT in (kind.gives, kind.gets) else 0
    return Lane(kind, dtype, op, root, capacity)


def steps(channel: CallChannel, given: Given, priority: int) -> Steps:
    """One call: yields whenever it waits; returns its result."""
    client, group, kind = channel.client, channel.group, given.kind
    connection = client.connection
    total_rows = sum(given.part_rows)
    row_bytes = given.rows.row_bytes if given.rows is not None else 0
    own_bytes = total_rows * row_bytes
    block = _header(given, total_rows) + struct.pack(f"<{len(given.part_rows)}q", *given.part_rows)
    said, inline = block, not kind.reduces and own_bytes <= _INLINE_BYTES
    if inline:
        said += ctypes.string_at(given.address, own_bytes)
    client.count_pushed_bytes(own_bytes)
    control = channel.control()
    round_ = connection.push_parts(control, said, [len(said)], priority)
    source, factors = given.address, given.factors
    own = [count * row_bytes for count in given.part_rows]
    lane, carried = None, 0
    failure: TalwegError | None = None
    if kind.reduces:
        if factors.prescale != 1.0:
            given.keep, source = factors.scaled(client, given.dtype, given.address, own_bytes)
        root, longest = given.root_rank, max(own)
        lane = _lane_of(kind, given.dtype, given.op, root, longest, group.size, channel.in_one)
        try:
            if lane is not None:
                carried = connection.push_parts(channel.lane_tensor(lane), source, own, priority)
        except TalwegError as error:  # The control round is taken all the same.
            failure = error
    all_pushed = lane is not None or (inline and kind.equal)
    try:
        yield Wait(control, round_, channel.said_at, channel.said.size, not all_pushed)
    except Aborted:
        if lane is not None and failure is None:
            yield from _drop(channel, lane, carried)
        raise
    if failure is not None:
        raise failure

    every: list[_Said] | None = None
    if lane is not None and channel.same(block):
        assert given.rows is not None
        rows = given.rows
        got_rows = _got_of_reduction(given, group)
    else:
        every = _read(channel.said, group, channel.in_one)
        try:
            rows = _check_alike(channel, every)
        except Mismatch:
            yield from _settle(channel, every, priority, lane, carried)
            raise
        got = _got(given, group, every)
        got_rows = [every[place].part_rows[part] for place, part in got]
    result, out = given.allocate(rows, got_rows)
    got_bytes = [count * rows.row_bytes for count in got_rows]
    if every is not None and all(said.inline for said in every):
        for (place, part), nbytes in zip(got, got_bytes):
            before = sum(every[place].part_rows[:part]) * rows.row_bytes
            ctypes.memmove(out, channel.said_at + every[place].data_at + before, nbytes)
            out += nbytes
        return result
    if lane is not None:
        yield Wait(channel.lane_tensor(lane), carried, out, sum(got_bytes), False)
    elif every is not None:
        largest = max((max(said.part_rows, default=0) for said in every), default=0)
        nbytes = largest * rows.row_bytes
        yield from _carry(channel, given, priority, source, own, out, got_bytes, nbytes)
    finish = factors.after(client, given.dtype, out, sum(got_bytes) // given.dtype.nbytes)
    if finish is not None:
        finish()
    return result


def _settle(
    channel: CallChannel, every: list[_Said], priority: int, own: Lane | None, carried: int
) -> Steps:
    """Ends the rounds of data that ranks have begun whose calls do not fit together.

    Every rank takes part in each of them, with nothing where it has not begun it. Nobody looks at
    what they come to: most end with a Mismatch of their own.
    """
    connection, size = channel.client.connection, channel.group.size
    for lane in dict.fromkeys(said.lane for said in every if said.lane is not None):
        round_ = carried
        if lane != own:
            parts = [0] * lane.kind.parts_given(channel.group.place, 0, size)
            round_ = connection.push_parts(channel.lane_tensor(lane), 0, parts, priority)
        yield from _drop(channel, lane, round_)


def _drop(channel: CallChannel, lane: Lane, round_: int) -> Steps:
    """Ends a round of data whose result nobody wants."""
    nothing: np.ndarray = np.empty(lane.capacity_bytes, np.uint8)
    with contextlib.suppress(Mismatch, Aborted):
        yield Wait(channel.lane_tensor(lane), round_, int(nothing.ctypes.data), nothing.size)


def _starts(lengths: Sequence[int], first: int) -> list[int]:
    """Where each of parts begins that lie one after another."""
    starts = []
    for length in lengths:
        starts.append(first)
        first += length
    return starts


def _carry(
    channel: CallChannel,
    given: Given,
    priority: int,
    source: int,
    own: list[int],
    out: int,
    got: list[int],
    largest: int,
) -> Steps:
    """Parts of `own` bytes from `source` to the other ranks, of `got` bytes from them to `out`."""
    if largest == 0:
        return
    connection = channel.client.connection
    capacity = _capacity_of(given.kind, largest, channel.group.size, channel.in_one)
    root = given.root_rank if _ROOT in (given.kind.gives, given.kind.gets) else 0
    tensor = channel.lane_tensor(Lane(given.kind, given.dtype, given.op, root, capacity))
    if largest <= capacity:
        round_ = connection.push_parts(tensor, source, own, priority)
        yield Wait(tensor, round_, out, sum(got), False)
        return
    sources, targets = _starts(own, source), _starts(got, out)
    pushed: np.ndarray = np.empty(len(own) * capacity, np.uint8)
    taken: np.ndarray = np.empty(len(got) * capacity, np.uint8)
    pushed_at, taken_at = int(pushed.ctypes.data), int(taken.ctypes.data)
    for begin in range(0, largest, capacity):
        pushed_now = [min(max(length - begin, 0), capacity) for length in own]
        for start, length, at in zip(sources, pushed_now, _starts(pushed_now, pushed_at)):
            ctypes.memmove(at, start + begin, length)
        round_ = connection.push_parts(tensor, pushed_at, pushed_now, priority)
        taken_now = [min(max(length - begin, 0), capacity) for length in got]
        yield Wait(tensor, round_, taken_at, sum(taken_now), begin + capacity < largest)
        for start, length, at in zip(targets, taken_now, _starts(taken_now, taken_at)):
            ctypes.memmove(start + begin, at, length)


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
    _native_arguments.check_name_and_priority("" if name is None else name, priority)
    channel = channel_of(client, name, group)
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
    return client.synchronize(handle, timeout_s)


__all__ = ["CallChannel", "Given", "JobHandle", "Kind", "Rows", "TalwegError", "run", "start"]
