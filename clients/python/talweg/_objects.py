# SPDX-License-Identifier: Apache-2.0
"""Bytes and Python objects of any size over rounds of fixed-length tensors.

A tensor's length is agreed for ever (docs/protocol.md, section 4), an object's is not. So an
object travels in a byte tensor whose length is a power of two, under a name that holds that
length; how many of its bytes count is told first, in a tensor of its own. A long one that is
broadcast takes several rounds of a tensor that has the largest such length.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from talweg._declaration import Op
from talweg._process_sets import Group, ProcessSet
from talweg.errors import Aborted

if TYPE_CHECKING:
    from talweg._client import Client

_CAPACITY_BYTES_MIN = 1024
# What a tensor takes it takes at every rank, agent and aggregator until the job ends.
_CHUNK_BYTES = 16 << 20


def _capacity_bytes(length: int) -> int:
    capacity = _CAPACITY_BYTES_MIN
    while capacity < length:
        capacity *= 2
    return capacity


class ByteStream:
    """The root's bytes to every rank, in pieces: each rank carries pieces of the same lengths.

    Takes the memory of one round, whatever the length.
    """

    def __init__(
        self,
        client: Client,
        root_rank: int,
        name: str,
        length: int = 0,
        process_set: ProcessSet | None = None,
    ) -> None:
        """`length` is that of all pieces together; the root's counts, for every rank."""
        self._group = Group(client, process_set, "broadcast")
        self.is_root = client.rank == root_rank
        told = np.array([length], dtype=np.int64)
        self._client = client
        self._root_rank = root_rank
        self._run(f"{name}.length", told)
        self.length = int(told[0])
        capacity = min(_capacity_bytes(self.length), _CHUNK_BYTES)
        self._chunk: np.ndarray = np.zeros(capacity, dtype=np.uint8)
        self._name = f"{name}.bytes.{capacity}"
        self._position = 0 if self.is_root else capacity
        self._left = self.length

    def carry(self, piece: np.ndarray) -> None:
        """The root's next bytes, `piece` at every rank; at the root it is only read."""
        while piece.size > 0:
            if not self.is_root and self._position == self._chunk.size:
                self._exchange()
            count = min(piece.size, self._chunk.size - self._position)
            part = self._chunk[self._position : self._position + count]
            if self.is_root:
                part[:] = piece[:count]
            else:
                piece[:count] = part
            piece = piece[count:]
            self._position += count
            self._left -= count
            if self.is_root and (self._left == 0 or self._position == self._chunk.size):
                self._exchange()

    def _exchange(self) -> None:
        self._run(self._name, self._chunk)
        self._position = 0

    def _run(self, name: str, array: np.ndarray) -> None:
        group = self._group
        self._client.run(name, array, Op.BROADCAST, self._root_rank, group.listed, group.suffix)


def broadcast_bytes(
    client: Client,
    payload: bytes | memoryview,
    root_rank: int,
    name: str,
    process_set: ProcessSet | None = None,
) -> np.ndarray:
    """Returns the root's bytes on every rank; other ranks' `payload` is ignored."""
    stream = ByteStream(client, root_rank, name, len(payload), process_set)
    data: np.ndarray = np.empty(stream.length, dtype=np.uint8)
    if stream.is_root:
        data = np.frombuffer(payload, dtype=np.uint8)
    stream.carry(data)
    return data


def broadcast_object(
    client: Client, value: Any, root_rank: int, name: str, process_set: ProcessSet | None = None
) -> Any:
    """Returns the root's `value` on every rank; other ranks' `value` is ignored."""
    Group(client, process_set, "broadcast_object").require_root(root_rank, "broadcast_object")
    is_root = client.rank == root_rank
    payload = pickle.dumps(value, protocol=4) if is_root else b""
    data = broadcast_bytes(client, payload, root_rank, name, process_set)
    return value if is_root else pickle.loads(data.data)


def _sum_of_places(client: Client, own: np.ndarray, name: str, group: Group) -> np.ndarray:
    """Returns the sum of every rank's array, once every rank is known to be in it, once.

    Where a job goes on with other members than it began with, a rank may be gone, and one that has
    joined may have another's number.
    """
    places: np.ndarray = np.zeros(own.size + group.size, dtype=own.dtype)
    places[: own.size] = own
    places[own.size + group.place] = 1
    # Its length is that of the job's ranks.
    client.run(name + client.connection.view_suffix, places, Op.SUM, 0, group.listed, group.suffix)
    for rank, count in zip(group.ranks, places[own.size :]):
        if count == 0:
            raise Aborted(
                f"gather '{name}': rank {rank} is gone, and has nothing to say; start the job again"
            )
        if count > 1:
            raise Aborted(
                f"gather '{name}': {count} ranks have number {rank}, as nodes were lost and others "
                "have joined; start the job again"
            )
    return places[: own.size]


def all_gather_object(
    client: Client, value: Any, name: str, process_set: ProcessSet | None = None
) -> list[Any]:
    """Returns every rank's `value`, in rank order.

    Every rank has a place of its own in one byte tensor and zeros elsewhere; adding zeros leaves
    bytes as they are, so the sum is all of them side by side. Raises Aborted when a rank is gone.
    """
    group = Group(client, process_set, "all_gather_object")
    payload = pickle.dumps(value, protocol=4)
    own_length: np.ndarray = np.zeros(group.size, dtype=np.int64)
    own_length[group.place] = len(payload)
    lengths = _sum_of_places(client, own_length, f"{name}.lengths", group)
    ends = np.cumsum(lengths)
    data: np.ndarray = np.zeros(_capacity_bytes(int(ends[-1])), dtype=np.uint8)
    begin = int(ends[group.place]) - len(payload)
    data[begin : begin + len(payload)] = np.frombuffer(payload, dtype=np.uint8)
    data = _sum_of_places(client, data, f"{name}.bytes.{data.size}", group)
    return [
        pickle.loads(data[int(end - length) : int(end)].tobytes())
        for end, length in zip(ends, lengths)
    ]
