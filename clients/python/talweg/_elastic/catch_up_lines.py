# SPDX-License-Identifier: Apache-2.0
"""Carries messages from one survivor to the ranks of one standby, in rounds beside the steps.

A line is a stream of messages, cut into chunks of one round each. Two chunks are under way at once.
A chunk begins with its length and with a mark that says whether it begins a message anew. If it
does, the message before is void unless it was whole. After the last message come empty chunks, one
for each round that the others wait for at that time, so that no round stays open.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Union

import numpy as np

from talweg._declaration import Declaration, DType, Op
from talweg._elastic import stripes
from talweg._elastic.pace import Pace
from talweg._elastic.replay import Call
from talweg._library import native
from talweg.errors import TalwegError

# The most bytes that a round takes. All tensors of a line take several times as much, for each line
# that a rank has.
CHUNK_BYTES = 2 << 20
# A joiner says one of these to a survivor, in each byte of a line's first round: the survivor is to
# send, or the line is over.
ASKS, ASKS_NOT = 0, 1
_CHUNK = struct.Struct("<QQ")  # Bytes that follow, and whether a message begins.
_MESSAGE = struct.Struct("<8Q")  # Kind, numbers, and bytes of a pickle that follows.
_LANES = 2
# Lower than the priority of all rounds that a step waits for.
PRIORITY = 1 - (1 << 31)


class Kind(IntEnum):
    """The kinds of messages."""

    SNAPSHOT = 1
    ENTRY = 2
    REST = 3
    UNABLE = 4


@dataclass(frozen=True)
class Snapshot:
    """One survivor's stripe of a snapshot."""

    step: int
    place: int
    count: int
    header: bytes  # Only the first survivor (place 0) sends it; empty from the others.
    sizes: tuple[int, ...]  # The sizes of all buffers.
    stripe: np.ndarray  # Empty at the reader, whose FindRoom has chosen where the stripe goes.
    # Copies the stripe before it is sent. None: the stripe is there.
    copying: stripes.Copying | None = None


@dataclass(frozen=True)
class Entry:
    """One survivor's stripe of a step. When it left, the step `newest` was already to be sent."""

    step: int
    newest: int
    calls: Sequence[Call]


@dataclass(frozen=True)
class Rest:
    """The values that are not replayed; empty unless from the first survivor. Nothing follows."""

    step: int
    payload: memoryview


@dataclass(frozen=True)
class Unable:
    """The survivor gives nothing more."""

    reason: str


Message = Union[Snapshot, Entry, Rest, Unable]


def pieces(message: Message) -> list[np.ndarray]:
    """Returns the message as bytes. Its arrays are not copied."""
    numbers: tuple[int, ...] = ()
    small: object = None
    large: list[np.ndarray] = []
    if isinstance(message, Snapshot):
        kind = Kind.SNAPSHOT
        numbers = (message.step, message.place, message.count)
        small, large = (message.header, message.sizes, message.stripe.size), [message.stripe]
    elif isinstance(message, Entry):
        kind, numbers = Kind.ENTRY, (message.step, message.newest)
        small = [(call.header, call.total, call.stripe.size) for call in message.calls]
        large = [call.stripe for call in message.calls]
    elif isinstance(message, Rest):
        kind, numbers, small = Kind.REST, (message.step,), len(message.payload)
        large = [np.frombuffer(message.payload, np.uint8)]
    else:
        kind, small = Kind.UNABLE, message.reason
    pickled = pickle.dumps(small)
    padded = (*numbers, 0, 0, 0, 0, 0, 0)[:6]
    head = _MESSAGE.pack(kind, *padded, len(pickled)) + pickled
    return [np.frombuffer(head, np.uint8), *(each for each in large if each.size)]


# Yields arrays for the caller to fill, and messages.
_Parser = Generator[Union[np.ndarray, Message], None, None]


# Called with a snapshot and the length of its stripe in bytes, when the stripe begins to come.
# Returns the arrays that the stripe is written to.
FindRoom = Callable[["Snapshot", int], Sequence[np.ndarray]]


def _parse(find_room: FindRoom) -> _Parser:
    """Yields arrays to fill, and messages."""

    def filled(size: int) -> Generator[np.ndarray, None, np.ndarray]:
        data: np.ndarray = np.empty(size, np.uint8)
        if size > 0:
            yield data
        return data

    while True:
        head = yield from filled(_MESSAGE.size)
        kind, *numbers, small_bytes = _MESSAGE.unpack(head.tobytes())
        small = pickle.loads((yield from filled(small_bytes)).data)
        if kind == Kind.SNAPSHOT:
            header, sizes, stripe_bytes = small
            step, place, count = numbers[:3]
            snapshot = Snapshot(step, place, count, header, sizes, np.empty(0, np.uint8))
            for part in find_room(snapshot, stripe_bytes):
                if part.size > 0:
                    yield part
            yield snapshot
        elif kind == Kind.ENTRY:
            calls = []
            for call_header, total, size in small:
                calls.append(Call(call_header, total, (yield from filled(size))))
            yield Entry(numbers[0], numbers[1], calls)
        elif kind == Kind.REST:
            yield Rest(numbers[0], (yield from filled(small)).data)
        else:
            yield Unable(small)


class Reader:
    """Turns chunks into messages."""

    def __init__(self, find_room: FindRoom) -> None:
        self._find_room = find_room
        self._begin()

    def _begin(self) -> None:
        self._parser = _parse(self._find_room)
        self._position = 0
        self._target = next(self._parser)

    def take(self, chunk: np.ndarray) -> Iterator[Message]:
        """Yields the messages that this round's chunk completes."""
        length, begins = _CHUNK.unpack(chunk[: _CHUNK.size].tobytes())
        data = chunk[_CHUNK.size : _CHUNK.size + length]
        if begins:
            self._begin()
        while data.size > 0:
            assert isinstance(self._target, np.ndarray)
            count = min(data.size, self._target.size - self._position)
            self._target[self._position : self._position + count] = data[:count]
            self._position += count
            data = data[count:]
            if self._position < self._target.size:
                break
            self._position, self._target = 0, next(self._parser)
            while not isinstance(self._target, np.ndarray):
                yield self._target
                self._target = next(self._parser)


def line_name(standby: tuple[int, int], survivor: tuple[int, int], local_rank: int) -> str:
    """Returns the name of a line's tensors. Nodes are given with their incarnations."""
    return f"talweg.catch_up.{standby[0]}.{standby[1]}.{survivor[0]}.{survivor[1]}.{local_rank}"


class Rounds:
    """Broadcasts from one rank to others, beside the steps. Two are under way at once.

    Any thread may use it, one at a time.
    """

    def __init__(
        self,
        connection: native.Connection,
        name: str,
        root: int,
        ranks: Sequence[int],
        bytes_max: int,
        is_root: bool,
        lanes: int = _LANES,
        pace: Pace | None = None,
        is_line: bool = True,
    ) -> None:
        """`pace` is told of the rounds that are sent. `is_line`: the data are chunks; otherwise the
        data are one round.
        """
        self._connection = connection
        self._pace = pace
        self._is_root = is_root
        self._is_line = is_line
        self._bytes_max = bytes_max
        kind = Declaration(DType.U8, bytes_max, Op.BROADCAST, root, tuple(ranks))
        self._tensors = [
            connection.declare_collective(
                f"{name}.{lane}",
                int(kind.dtype),
                int(kind.op),
                kind.shares(),
                root,
                sorted(ranks),
                bytes_max,
                PRIORITY,
                side=True,
            )
            for lane in range(lanes)
        ]
        self._open: list[int | None] = [None] * lanes
        self._sent = [(0, 0.0)] * lanes  # How many bytes were sent, and when.
        self._chunk: np.ndarray = np.empty(bytes_max, np.uint8)
        self._turn = 0
        if not is_root:
            for lane in range(lanes):
                self._open[lane] = connection.push_parts(self._tensors[lane], 0, [], PRIORITY)

    def send(self, chunk: np.ndarray, is_over: Callable[[], bool]) -> bool:
        """Sends a chunk. Returns False if `is_over` returns True before the chunk is sent."""
        if not self._await(self._turn, None, is_over):
            return False
        tensor = self._tensors[self._turn]
        address = int(chunk.ctypes.data)
        self._sent[self._turn] = chunk.size, time.monotonic()
        round_ = self._connection.push_parts(tensor, address, [chunk.size], PRIORITY)
        self._open[self._turn] = round_
        self._turn = (self._turn + 1) % len(self._tensors)
        return True

    @property
    def is_ready(self) -> bool:
        """Whether receive() would return without waiting."""
        round_ = self._open[self._turn]
        return round_ is not None and self._connection.poll(self._tensors[self._turn], round_)

    def receive(self, end: float) -> np.ndarray | None:
        """Returns the next chunk, valid until the next call. None: time.monotonic() has passed
        `end`.
        """
        turn = self._turn
        if self.is_over:
            time.sleep(max(end - time.monotonic(), 0.0))
            return None
        if not self._await(turn, end, lambda: True):
            return None
        if self._is_line and _CHUNK.unpack(self._chunk[: _CHUNK.size].tobytes())[0] > 0:
            self._open[turn] = self._connection.push_parts(self._tensors[turn], 0, [], PRIORITY)
        self._turn = (turn + 1) % len(self._tensors)
        return self._chunk

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be received."""
        return self._open[self._turn] is None

    def finish(self, is_over: Callable[[], bool]) -> bool:
        """Returns when all sent chunks have arrived. Returns False if `is_over` returns True
        before.
        """
        return all(self._await(lane, None, is_over) for lane in range(len(self._tensors)))

    def _await(self, lane: int, end: float | None, is_over: Callable[[], bool]) -> bool:
        round_ = self._open[lane]
        if round_ is None:
            return True
        address, room = int(self._chunk.ctypes.data), self._bytes_max
        wait = self._connection.wait_parts
        while not wait(self._tensors[lane], round_, address, room, end if end else _soon()):
            if is_over():
                return False
        self._open[lane] = None
        if self._is_root and self._pace is not None:
            self._pace.on_round(*self._sent[lane], time.monotonic())
        return True

    def close(self) -> None:
        """Takes the rounds that are over, so that no round stays open at the end."""
        for lane, round_ in enumerate(self._open):
            if round_ is not None and self._connection.poll(self._tensors[lane], round_):
                with contextlib.suppress(TalwegError):
                    self._await(lane, None, lambda: True)


def _soon() -> float:
    return time.monotonic() + 0.1


class Writer:
    """Cuts messages into chunks, and sends them.

    A step may be smaller than a round's chunk. So a chunk holds as many messages as there are and
    fit.
    """

    def __init__(
        self, rounds: Rounds, bytes_max: int = CHUNK_BYTES, pace: Pace | None = None
    ) -> None:
        """`pace` says how long the next chunk is. None: as long as possible."""
        self._rounds = rounds
        self._pace = pace
        self._chunk: np.ndarray = np.empty(bytes_max, np.uint8)
        # How many bytes of the chunk are filled, and whether it begins a message anew.
        self._position, self._begins = _CHUNK.size, True

    def send(self, message: Message, is_over: Callable[[], bool], has_next: bool = False) -> bool:
        """Sends a message. `has_next`: another message follows at once, and may use the same chunk.

        Returns False if `is_over` returns True before all was sent. The next message begins anew
        then.
        """
        for piece in pieces(message):
            while piece.size > 0:
                room = self._chunk_bytes - self._position
                if room <= 0:  # The room has become less.
                    if not self._leave(is_over):
                        return False
                    continue
                count = min(piece.size, room)
                self._chunk[self._position : self._position + count] = piece[:count]
                piece, self._position = piece[count:], self._position + count
                if count == room and not self._leave(is_over):
                    return False
        return has_next or self._position == _CHUNK.size or self._leave(is_over)

    def end(self, is_over: Callable[[], bool]) -> bool:
        """Ends the line: no message follows. Returns False if `is_over` returns True before all was
        sent.
        """
        # The chunk that send() has kept for a following message goes first.
        is_kept = self._position > _CHUNK.size
        return all(self._leave(is_over) for _ in range(is_kept + _LANES))

    @property
    def _chunk_bytes(self) -> int:
        return self._chunk.size if self._pace is None else self._pace.chunk_bytes

    def _leave(self, is_over: Callable[[], bool]) -> bool:
        head = _CHUNK.pack(self._position - _CHUNK.size, self._begins)
        self._chunk[: _CHUNK.size] = np.frombuffer(head, np.uint8)
        sent = not is_over() and self._rounds.send(self._chunk[: self._position], is_over)
        self._position, self._begins = _CHUNK.size, not sent
        return sent
