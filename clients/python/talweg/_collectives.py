# SPDX-License-Identifier: Apache-2.0
"""Collectives of any shape, for every framework: docs/collectives.md says what each does.

Calls without a name belong together by their order, which is the same at every rank of a group;
calls with a name by their order under that name. Both is a *channel*: its calls run one after
another, those of different channels at once.

A call is one round of the channel's control tensor, an all_gather: each rank says what it calls and
how long its parts are, and gives its data in the same round where that is 4 KiB or less. All ranks
compare what the others have said, and all come to the same answer: Mismatch, before any data was
pushed. Where a rank's data is longer, and in reductions, one more round carries it, or several of a
large tensor. So a call costs:

    copies of at most 4 KiB a rank       1 round
    other copies, all reductions         2 rounds, and one for each further 32 MiB of all parts

The data goes through tensors whose lengths are powers of two, with parts that are shorter. A
channel has few of them, so memory stays flat however often shapes change.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from talweg import _native
from talweg._client import Client, Handle
from talweg._declaration import DType, Op
from talweg._process_sets import Group
from talweg._scaling import NO_FACTORS, Factors
from talweg.errors import Mismatch, TalwegError, Timeout

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

# kind, op, dimensions of a row, nothing; root; bytes of a row; dtype; the row's shape; rows. Then
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


@dataclass
class _Wait:
    tensor: int
    round: int
    out: int
    out_bytes: int


_Steps = Generator[_Wait, None, Any]


class Channel:
    """Calls of one group that run one after another, in the order in which they were made."""

    def __init__(self, client: Client, name: str, group: Group) -> None:
        self.client = client
        self.name = name
        self.group = group
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._tensors: dict[tuple[Any, ...], int] = {}
        size = group.size
        capacity = _HEADER.size + 8 * size + _INLINE_BYTES
        self._control_bytes = -(-capacity // 64) * 64
        self.said: np.ndarray = np.empty(size * self._control_bytes, np.uint8)
        self.said_at = int(self.said.ctypes.data)

    def _declare(
        self, name: str, dtype: DType, op: Op, shares: tuple[int, int], root: int, count: int
    ) -> int:
        key = (name, dtype, op, shares, root, count)
        tensor = self._tensors.get(key)
        if tensor is None:
            tensor = self.client.connection.declare_collective(
                f"{name}{self.group.suffix}", dtype, op, shares, root, self.group.listed, count
            )
            self._tensors[key] = tensor
        return tensor

    def control(self) -> int:
        shares = (_OWN, _WHOLE)
        return self._declare(self.name, DType.U8, Op.BROADCAST, shares, 0, self._control_bytes)

    def lane(self, given: Given, capacity_bytes: int, item_bytes: int) -> int:
        """The tensor for parts of so many bytes."""
        kind = given.kind
        root = given.root_rank if _ROOT in (kind.gives, kind.gets) else 0
        words = f"{kind.gives}{kind.gets}.{given.dtype.name}.{given.op.name}.{root}"
        return self._declare(
            f"{self.name}.{words}.{capacity_bytes}".lower(),
            given.dtype,
            given.op,
            (kind.gives, kind.gets),
            root,
            capacity_bytes // item_bytes,
        )

    def run(self, job: Job) -> None:
        """Runs it on this thread, after those that were made before."""
        with self._lock:
            is_first = not self._busy
            if is_first:
                self._busy = True
            else:
                self._jobs.append(job)
        if not is_first:
            job.done.wait()
            return
        try:
            job.go_on()
        finally:
            with self._lock:
                if not job.done.is_set():  # Interrupted: the other ranks still count on it.
                    self._jobs.appendleft(job)
                self._release()

    def submit(self, job: Job) -> None:
        """Runs it on another thread, after those that were made before."""
        with self._lock:
            self._jobs.append(job)
            if not self._busy:
                self._busy = True
                self._release()

    def _release(self) -> None:
        if self._jobs:
            threading.Thread(target=self._work, name="talweg-collectives", daemon=True).start()
        else:
            self._busy = False

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._busy = False
                    return
                job = self._jobs.popleft()
            job.go_on()


def channel_of(client: Client, name: str | None, group: Group) -> Channel:
    """The channel of calls of that name, or without one."""
    key = ("talweg.collectives" if name is None else f"{name}.collective", group.ranks)
    with client.channels_lock:
        channel = client.channels.get(key)
        if channel is None:
            channel = client.channels[key] = Channel(client, key[0], group)
    return channel


class Job:
    """One or several calls that have one handle."""

    def __init__(self, channel: Channel, calls: Sequence[Given], priority: int) -> None:
        self.channel = channel
        self.done = threading.Event()
        self.results: list[Any] = []
        self.failure: BaseException | None = None
        self._calls = deque(calls)
        self._priority = priority
        self._steps: _Steps | None = None
        self._wait: _Wait | None = None

    def go_on(self) -> None:
        """Runs it to its end, or until this thread is interrupted; then once more."""
        connection = self.channel.client.connection
        try:
            while self._calls:
                if self._steps is None:
                    self._steps = _steps(self.channel, self._calls[0], self._priority)
                try:
                    while True:
                        if self._wait is None:
                            self._wait = next(self._steps)
                        wait = self._wait
                        connection.wait_parts(wait.tensor, wait.round, wait.out, wait.out_bytes)
                        self._wait = None
                except StopIteration as end:
                    self.results.append(end.value)
                except Mismatch as mismatch:
                    # The other calls of the job go on at every rank.
                    self.failure = self.failure or mismatch
                self._steps = self._wait = None
                self._calls.popleft()
        except Exception as failure:
            self.failure = self.failure or failure
            self._calls.clear()
        self.done.set()


@dataclass(eq=False)
class JobHandle(Handle):
    """The handle of a Job."""

    job: Job | None = None
    # Makes of the calls' results what the caller gets.
    shape: Callable[[list[Any]], Any] = field(default=lambda results: results[0])

    def is_complete(self, connection: _native.Connection) -> bool:
        assert self.job is not None
        return self.job.done.is_set()

    def take(self, connection: _native.Connection, timeout_s: float | None) -> None:
        _native.nanoseconds(timeout_s)  # Refuses what is no time.
        assert self.job is not None
        if not self.job.done.wait(min(timeout_s, 1e8) if timeout_s is not None else None):
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
        0,
        given.root_rank,
        rows.row_bytes,
        rows.dtype.encode()[:16],
        *dims,
        total_rows,
    )


def _read(said: np.ndarray, group: Group) -> list[_Said]:
    """What each rank of the group has said."""
    at, every = 0, []
    view = memoryview(said.data)
    for place in range(group.size):
        number, op, dimensions, _, root_rank, row_bytes, dtype, *dims = _HEADER.unpack_from(
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
        every.append(_Said(kind, alike, dims[-1], rows, part_rows, at, inline, op, root_rank))
        if inline:
            at += nbytes
    return every


def _check_alike(channel: Channel, every: list[_Said]) -> Rows:
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
                    f"'{channel.name}{channel.group.suffix}': rank {ranks[place]} calls {one}, but "
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


def _steps(channel: Channel, given: Given, priority: int) -> _Steps:
    """One call: yields whenever it waits; returns its result."""
    connection, group, kind = channel.client.connection, channel.group, given.kind
    total_rows = sum(given.part_rows)
    own_bytes = total_rows * (given.rows.row_bytes if given.rows is not None else 0)
    block = _header(given, total_rows) + struct.pack(f"<{len(given.part_rows)}q", *given.part_rows)
    if not kind.reduces and own_bytes <= _INLINE_BYTES:
        block += ctypes.string_at(given.address, own_bytes)
    channel.client.count_pushed_bytes(own_bytes)
    control = channel.control()
    said_by_this = np.frombuffer(block, np.uint8)
    round_ = connection.push_parts(control, said_by_this.ctypes.data, [len(block)], priority)
    yield _Wait(control, round_, channel.said_at, channel.said.size)

    every = _read(channel.said, group)
    rows = _check_alike(channel, every)
    got = _got(given, group, every)
    got_rows = [every[place].part_rows[part] for place, part in got]
    result, out = given.allocate(rows, got_rows)
    got_bytes = [count * rows.row_bytes for count in got_rows]
    if all(said.inline for said in every):
        for (place, part), nbytes in zip(got, got_bytes):
            before = sum(every[place].part_rows[:part]) * rows.row_bytes
            ctypes.memmove(out, channel.said_at + every[place].data_at + before, nbytes)
            out += nbytes
        return result
    own = [count * rows.row_bytes for count in given.part_rows]
    largest = max((max(said.part_rows, default=0) for said in every), default=0) * rows.row_bytes
    source, factors = given.address, given.factors
    if factors.prescale != 1.0:
        given.keep, source = factors.scaled(channel.client, given.dtype, given.address, own_bytes)
    yield from _carry(channel, given, priority, source, own, out, got_bytes, largest)
    finish = factors.after(channel.client, given.dtype, out, sum(got_bytes) // given.dtype.nbytes)
    if finish is not None:
        finish()
    return result


def _starts(lengths: Sequence[int], first: int) -> list[int]:
    """Where each of parts begins that lie one after another."""
    starts = []
    for length in lengths:
        starts.append(first)
        first += length
    return starts


def _carry(
    channel: Channel,
    given: Given,
    priority: int,
    source: int,
    own: list[int],
    out: int,
    got: list[int],
    largest: int,
) -> Generator[_Wait, None, None]:
    """Parts of `own` bytes from `source` to the other ranks, of `got` bytes from them to `out`."""
    if largest == 0:
        return
    connection = channel.client.connection
    most = _TENSOR_BYTES_MAX // given.kind.part_count(channel.group.size)
    capacity = _CAPACITY_BYTES_MIN
    while capacity < largest and capacity * 2 <= most:
        capacity *= 2
    tensor = channel.lane(given, capacity, given.dtype.nbytes)
    if largest <= capacity:
        round_ = connection.push_parts(tensor, source, own, priority)
        yield _Wait(tensor, round_, out, sum(got))
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
        yield _Wait(tensor, round_, taken_at, sum(taken_now))
        for start, length, at in zip(targets, taken_now, _starts(taken_now, taken_at)):
            ctypes.memmove(start + begin, at, length)


def start(
    client: Client,
    name: str | None,
    group: Group,
    calls: Sequence[Given],
    priority: int,
    shape: Callable[[list[Any]], Any],
) -> JobHandle:
    """Starts calls on another thread; they have one handle."""
    return _started(client, name, group, calls, priority, shape, Channel.submit)


def run(
    client: Client,
    name: str | None,
    group: Group,
    calls: Sequence[Given],
    priority: int,
    shape: Callable[[list[Any]], Any],
    timeout_s: float | None,
) -> Any:
    """Runs calls, on this thread if it waits as long as they take."""
    client.check_timeout(timeout_s)
    how = Channel.run if timeout_s is None else Channel.submit
    handle = _started(client, name, group, calls, priority, shape, how)
    return client.synchronize(handle, timeout_s)


def _started(
    client: Client,
    name: str | None,
    group: Group,
    calls: Sequence[Given],
    priority: int,
    shape: Callable[[list[Any]], Any],
    how: Callable[[Channel, Job], None],
) -> JobHandle:
    _native.check_name_and_priority("" if name is None else name, priority)
    channel = channel_of(client, name, group)
    job = Job(channel, calls, priority)
    how(channel, job)
    return JobHandle(client, 0, 0, channel.name, job=job, shape=shape)


__all__ = ["Channel", "Given", "JobHandle", "Kind", "Rows", "TalwegError", "run", "start"]
