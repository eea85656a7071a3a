# SPDX-License-Identifier: Apache-2.0
"""Bytes and Python objects of any size over rounds of fixed-length tensors.

The length of a tensor never changes (docs/protocol.md, section 4), that of an object does. So an
object travels in a byte tensor whose length is a power of two, under a name that holds that
length. A tensor of its own tells first how many of the bytes count. A long object takes several
rounds of a tensor that has the largest such length.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from talweg._collectives.lost_ranks import gone, lost_rank
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, Op, numpy_dtype
from talweg._library.native_arguments import check_name_and_priority, name_for_tensors
from talweg.errors import Aborted, InvalidArgument, TalwegError

if TYPE_CHECKING:
    from talweg._client import Client
    from talweg._client.handles import Handle

_CAPACITY_BYTES_MIN = 1024
# A tensor takes its memory at every rank, agent and aggregator until the job ends.
_CHUNK_BYTES = 8 << 20


def _capacity_bytes(length: int) -> int:
    capacity = _CAPACITY_BYTES_MIN
    while capacity < length:
        capacity *= 2
    return capacity


@dataclass(frozen=True)
class Payload:
    """The bytes that a rank gives, or why it has none. The others wait for one or the other."""

    data: bytes | memoryview = b""
    failure: Exception | None = None
    # The bytes that follow `data`.
    more: Sequence[bytes | memoryview] = ()

    @classmethod
    def of(cls, make: Callable[[], bytes | memoryview | Sequence[bytes | memoryview]]) -> Payload:
        try:
            made = make()
        except Exception as failure:  # A user's class may raise any error.
            return cls(f"{type(failure).__name__}: {failure}".encode(), failure)
        if isinstance(made, (bytes, memoryview)):
            return cls(made)
        return cls(more=made)

    @property
    def length(self) -> int:
        return len(self.data) + sum(len(piece) for piece in self.more)


# Arrays in the bytes of pieces_of() begin at multiples of this, as their elements need it.
_ALIGNMENT = 64


def pickled(value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> list[memoryview]:
    """Pickles `value` for unpickled(). Returns the pickle, then the arrays, not copied."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


def by_cloudpickle(value: Any, protocol: int | None = None) -> bytes | None:
    """Pickles also a lambda, or a local or notebook function. None without cloudpickle."""
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ModuleNotFoundError:
        return None
    data: bytes = cloudpickle.dumps(value, protocol=protocol)
    return data


def dumped(value: Any) -> bytes:
    """Pickles `value`; by cloudpickle, if it is installed, what pickle does not take."""
    try:
        return pickle.dumps(value, protocol=4)
    except (pickle.PicklingError, AttributeError, TypeError):
        data = by_cloudpickle(value, protocol=4)
        if data is None:
            raise
        return data


def unpickled(pieces: Sequence[Any]) -> Any:
    """Returns the value that pickled() has pickled; arrays in it refer to the pieces."""
    return pickle.loads(pieces[0], buffers=pieces[1:])


def pieces_of(
    value: Any, pickler: type[pickle.Pickler] = pickle.Pickler
) -> list[bytes | memoryview]:
    """Pickles `value` for from_pieces(). Arrays in it are not copied: they stay where they are.

    The bytes are: the number of pieces (u64), the length of each (u64), then the pickle and the
    arrays, each after zeros up to a multiple of 64 bytes.
    """
    pieces = pickled(value, pickler)
    lengths = np.array([len(pieces), *map(len, pieces)], dtype="<u8").tobytes()
    made: list[bytes | memoryview] = [lengths]
    position = len(lengths)
    for piece in pieces:
        made += [bytes(-position % _ALIGNMENT), piece]
        position += len(made[-2]) + len(piece)
    return made


def from_pieces(data: memoryview) -> Any:
    """Returns the value of pieces_of(), whose bytes are `data`; arrays in it refer to `data`."""
    count = int(np.frombuffer(data, "<u8", 1)[0])
    position = 8 * (1 + count)
    pieces = []
    for length in np.frombuffer(data, "<u8", count, 8).tolist():
        position += -position % _ALIGNMENT
        pieces.append(data[position : position + length])
        position += length
    return unpickled(pieces)


@dataclass(frozen=True)
class _Failure:
    """Stands for an object that its rank cannot pickle."""

    text: str


def _cannot_pickle(rank: int, text: str) -> InvalidArgument:
    return InvalidArgument(
        f"rank {rank} cannot pickle its object ({text}): pass one that pickle.dumps() takes, or "
        "install cloudpickle for a lambda or a local function"
    )


def broadcast_name(name: str | None, root_rank: int) -> str:
    """Returns the name of the tensors of a broadcast_object(); each root has its own."""
    if name is None:
        return f"broadcast_object.{root_rank}"
    check_name_and_priority(name, 0)
    return name_for_tensors(f"{name}.{root_rank}")


def broadcast_call(name: str | None) -> str:
    """Returns how errors name a broadcast_object() of that name."""
    return "broadcast_object without a name" if name is None else f"broadcast_object '{name}'"


def gather_name(name: str | None) -> str:
    """Returns the same for all_gather_object(), whose name a broadcast_object() may have, too."""
    if name is None:
        return "all_gather_object"
    check_name_and_priority(name, 0)
    return name_for_tensors(f"{name}.gathered")


def gather_call(name: str | None) -> str:
    """Returns how errors name an all_gather_object() of that name."""
    return "all_gather_object without a name" if name is None else f"all_gather_object '{name}'"


class ByteStream:
    """Brings the root's bytes to every rank, in pieces. All ranks carry pieces of the same lengths.

    Takes the memory of two rounds, whatever the length: one travels while the other is filled or
    emptied.
    """

    def __init__(
        self,
        client: Client,
        root_rank: int,
        name: str,
        length: int = 0,
        process_set: ProcessSet | None = None,
        is_failure: bool = False,
        call: str = "",
    ) -> None:
        """`length` is that of all pieces together. The root's value counts, for every rank.

        With `is_failure` the pieces say why the root has nothing else to send. `call` is how errors
        name the program's call, if a rank is lost.
        """
        self._group = Group(client, process_set, "broadcast")
        self.is_root = client.rank == root_rank
        told = np.array([-length if is_failure else length], dtype=np.int64)
        self._client = client
        self._root_rank = root_rank
        group = self._group
        self._call = call
        try:
            client.run(f"{name}.length", told, Op.BROADCAST, root_rank, group.listed, group.suffix)
        except Aborted as aborted:
            raise lost_rank(aborted, call) from None
        self.length = abs(int(told[0]))
        self.is_failure = bool(told[0] < 0)
        self._capacity = min(_capacity_bytes(self.length), _CHUNK_BYTES)
        self._rounds = -(-self.length // self._capacity)
        lanes = min(self._rounds, 2)
        self._chunks: list[np.ndarray] = [
            np.zeros(self._capacity, dtype=np.uint8) for _ in range(lanes)
        ]
        self._handles: list[Handle | None] = [None] * lanes
        self._names = [f"{name}.bytes.{self._capacity}{'.b' * lane}" for lane in range(lanes)]
        self._round = 0  # The round whose chunk is filled or emptied.
        self._position = 0
        if not self.is_root:
            for lane in range(lanes):
                self._push(lane)

    def carry(self, piece: np.ndarray) -> None:
        """Brings the root's next bytes to `piece` at every rank; the root only reads `piece`."""
        while piece.size > 0:
            lane = self._round % 2
            if self._position == 0:  # At the root: what was in the chunk must have left.
                self._await(lane)
            chunk = self._chunks[lane]
            count = min(piece.size, self._capacity - self._position)
            part = chunk[self._position : self._position + count]
            if self.is_root:
                part[:] = piece[:count]
            else:
                piece[:count] = part
            piece = piece[count:]
            self._position += count
            if self._position == self._capacity or self._carried == self.length:
                self._turn(lane)

    @property
    def _carried(self) -> int:
        return self._round * self._capacity + self._position

    def _turn(self, lane: int) -> None:
        """Goes on to the next chunk, because this one is full or empty."""
        is_last = self._carried == self.length
        if self.is_root or self._round + 2 < self._rounds:
            self._push(lane)
        self._round, self._position = self._round + 1, 0
        if is_last:
            for other in range(len(self._handles)):
                self._await(other)

    def _push(self, lane: int) -> None:
        chunk, group = self._chunks[lane], self._group
        kind = Declaration(
            numpy_dtype(chunk.dtype), chunk.size, Op.BROADCAST, self._root_rank, group.listed
        )
        address = chunk.ctypes.data
        self._handles[lane] = self._client.push(
            self._names[lane] + group.suffix, kind, address, address, keep=chunk
        )

    def _await(self, lane: int) -> None:
        handle, self._handles[lane] = self._handles[lane], None
        if handle is None:
            return
        try:
            self._client.synchronize(handle, None)
        except TalwegError as failure:
            for other in self._handles:  # No round stays open.
                if other is not None:
                    with contextlib.suppress(TalwegError):
                        self._client.synchronize(other, None)
            if isinstance(failure, Aborted):
                raise lost_rank(failure, self._call) from None
            raise


def broadcast_bytes(
    client: Client,
    payload: Payload,
    root_rank: int,
    name: str,
    process_set: ProcessSet | None = None,
    call: str = "",
) -> np.ndarray:
    """Returns the root's bytes on every other rank, whose `payload` is ignored; at the root its
    `data`. `call`: as of ByteStream.

    If the root has failed, raises the root's error there, and InvalidArgument with its text at the
    others.
    """
    failure = payload.failure
    stream = ByteStream(
        client, root_rank, name, payload.length, process_set, failure is not None, call
    )
    if stream.is_root:
        data: np.ndarray = np.frombuffer(payload.data, dtype=np.uint8)
        stream.carry(data)
        for piece in payload.more:
            if len(piece) > 0:
                stream.carry(np.frombuffer(piece, dtype=np.uint8))
    else:
        data = np.empty(stream.length, dtype=np.uint8)
        stream.carry(data)
    if stream.is_root and failure is not None:
        raise failure
    if stream.is_failure:
        raise _cannot_pickle(root_rank, data.tobytes().decode())
    return data


def broadcast_object(
    client: Client,
    value: Any,
    root_rank: int,
    name: str,
    process_set: ProcessSet | None = None,
    call: str = "",
) -> Any:
    """Returns the root's `value` on every rank; other ranks' `value` is ignored. `call`: as of
    ByteStream.
    """
    Group(client, process_set, "broadcast_object").require_root(root_rank, "broadcast_object")
    is_root = client.rank == root_rank
    payload = Payload.of(lambda: dumped(value)) if is_root else Payload()
    data = broadcast_bytes(client, payload, root_rank, name, process_set, call)
    return value if is_root else pickle.loads(data.data)


def _sum_of_places(
    client: Client, own: np.ndarray, name: str, group: Group, timeout_s: float | None, call: str
) -> np.ndarray:
    """Returns the sum of every rank's array, once every rank is known to be in it exactly once.

    If a job goes on with other members than it began with, a rank may have left, and a new rank may
    have its number.
    """
    places: np.ndarray = np.zeros(own.size + group.size, dtype=own.dtype)
    places[: own.size] = own
    places[own.size + group.place] = 1
    # The tensor's length depends on the number of ranks, so each view has its own tensor.
    name_in_view = name + client.connection.view_suffix
    client.run(name_in_view, places, Op.SUM, 0, group.listed, group.suffix, timeout_s)
    for rank, count in zip(group.ranks, places[own.size :]):
        if count == 0:
            raise gone(call, rank, may_have_joined=client.names_watcher is not None)
        if count > 1:
            raise Aborted(
                f"{call}: {count} ranks have number {rank}, as nodes were lost and others "
                "have joined; start the job again"
            )
    return places[: own.size]


def all_gather_object(
    client: Client,
    value: Any,
    name: str,
    process_set: ProcessSet | None = None,
    timeout_s: float | None = None,
    call: str = "",
) -> list[Any]:
    """Returns every rank's `value`, in rank order. `call` is how errors name the program's call.

    The objects' bytes stand one after another. Every rank has its own bytes in a byte tensor, and
    zeros elsewhere. Adding zeros leaves bytes unchanged, so the sum holds the bytes of all. Long
    objects take several rounds of the longest such tensor. Each round may take `timeout_s`. Raises
    Aborted if a rank is gone. If one rank cannot pickle its value, the others raise
    InvalidArgument.
    """
    group = Group(client, process_set, "all_gather_object")
    call = call or f"all_gather_object '{name}'"
    own = Payload.of(lambda: dumped(value))
    payload = own.data
    if own.failure is not None:
        payload = pickle.dumps(_Failure(bytes(own.data).decode()), protocol=4)
    own_length: np.ndarray = np.zeros(group.size, dtype=np.int64)
    own_length[group.place] = len(payload)
    lengths = _sum_of_places(client, own_length, f"{name}.lengths", group, timeout_s, call)
    ends = np.cumsum(lengths)
    total, end = int(ends[-1]), int(ends[group.place])
    capacity = min(_capacity_bytes(total), _CHUNK_BYTES)
    data: np.ndarray = np.zeros(-(-total // capacity) * capacity, dtype=np.uint8)
    data[end - len(payload) : end] = np.frombuffer(payload, dtype=np.uint8)
    for at in range(0, total, capacity):
        chunk = data[at : at + capacity]
        tensor = f"{name}.bytes.{capacity}"
        chunk[:] = _sum_of_places(client, chunk, tensor, group, timeout_s, call)
    if own.failure is not None:
        raise own.failure
    values = [
        pickle.loads(data[int(end - length) : int(end)].tobytes())
        for end, length in zip(ends, lengths)
    ]
    for rank, each in zip(group.ranks, values):
        if isinstance(each, _Failure):
            raise _cannot_pickle(rank, each.text)
    return values
