# SPDX-License-Identifier: Apache-2.0
"""all_gather_survivors(): a gather that goes on without ranks that are lost.

    whole        an all_gather. Nobody is lost: its result is that of every rank
    aborted      a rank is lost. All others learn it alike, from this call
    told         a reduction in which each rank says what it brings
    apart        they do not fit together: Mismatch at every rank
    alike        reductions in which each rank gives its rows, and zeros in all other places

A reduction goes on without lost ranks, and has the same bits at all that are left. So they all see
whose words and rows are in it: each rank marks its own place in every round. A rank that is lost
between two rounds is in the first one only; nobody keeps its rows. Once a channel has lost a rank
its calls begin with `told`, until the end of the step gives ranks other numbers, and other channels.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from talweg._collectives import one_call
from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Steps, Wait
from talweg._collectives.kinds import WHOLE, Given, Rows
from talweg._collectives.words import HEADER, check_alike, end_apart, header, read_header
from talweg._declaration import DType, Op
from talweg.errors import Aborted, Mismatch

_BYTES_MIN, _BYTES_MAX = 4096, 16 << 20  # What one round carries.


class Gathered(NamedTuple):
    """The rows of some ranks, one rank's after another's."""

    rows: Any
    ranks: tuple[int, ...]  # Numbers in the job, in ascending order.


def steps(channel: CallChannel, given: Given, priority: int) -> Steps:
    """The steps of one call. Its result is a Gathered."""
    if not channel.has_lost_a_rank:
        try:
            rows = yield from one_call.steps(channel, given, priority)
            return Gathered(rows, tuple(channel.group.ranks))
        except Aborted:
            if channel.client.names_watcher is not None:
                raise  # A rank that has joined would not take part in the other rounds.
            channel.has_lost_a_rank = True
    return (yield from _Call(channel, given, priority).steps())


class _Piece(NamedTuple):
    """Some bytes of the result, from `begin` to `end`."""

    begin: int
    end: int

    def within(self, begin: int, end: int) -> tuple[int, int]:
        """Returns what the piece has of another one. It may be empty."""
        return max(self.begin, begin), min(self.end, end)


class _Call:
    """A call of which at least one rank is lost."""

    def __init__(self, channel: CallChannel, given: Given, priority: int) -> None:
        self._channel = channel
        self._given = given
        self._priority = priority
        self._size = channel.group.size
        # After the ranks have told.
        self._rows: Rows
        self._counts: dict[int, int] = {}  # Rows by the rank's place, for all that have told.
        self._left: set[int] = set()  # Places of those that are in every round until now.

    def steps(self) -> Steps:
        if self._given.is_ready is not None:
            yield Wait(0, 0, 0, 0, is_ready=self._given.is_ready)
        yield from self._tell()
        result, address = None, 0
        failure: Exception | None = None
        try:
            result, address = self._room(sorted(self._counts))
        except Exception as error:  # No memory, or no such dtype. Other ranks get their results.
            failure = error
        yield from self._gather(address)
        if failure is not None:
            raise failure
        left = sorted(self._left)
        if len(left) < len(self._counts):
            result = self._without_lost(left, address, result)
        return Gathered(result, tuple(self._channel.group.ranks[place] for place in left))

    def _tell(self) -> Steps:
        """Finds out who is left, and what they bring. Raises Mismatch at all of them alike."""
        given, channel, place = self._given, self._channel, self._channel.group.place
        said: np.ndarray = np.zeros((self._size, HEADER.size), np.uint8)
        said[place] = np.frombuffer(header(given, given.part_rows[0]), np.uint8)
        yield self._round("told", said, said.size)
        told = {}
        for each in range(self._size):
            head = read_header(memoryview(said.data).cast("B"), each * HEADER.size)
            if head is not None:
                told[each] = head
        ranks = [channel.group.ranks[each] for each in told]
        try:
            self._rows = check_alike(channel.title, channel.group, list(told.values()), ranks)
        except Mismatch as mismatch:
            mismatch.ends_all = end_apart(list(told.values()))
            raise
        self._counts = {each: head.total_rows for each, head in told.items()}
        self._left = set(told)

    def _gather(self, address: int) -> Steps:
        """Brings all rows to `address`; nowhere if that is 0."""
        spans = self._spans(sorted(self._counts))
        total = max((span.end for span in spans.values()), default=0)
        own = spans[self._channel.group.place]
        self._channel.client.count_pushed_bytes(own.end - own.begin)
        marks = -(-self._size // 64) * 64  # A byte for each rank, before the data.
        capacity = _BYTES_MIN
        while capacity < marks + total and capacity < _BYTES_MAX:
            capacity *= 2
        for begin in range(0, total, capacity - marks):
            end = min(total, begin + capacity - marks)
            given: np.ndarray = np.zeros(marks + end - begin, np.uint8)
            given[self._channel.group.place] = 1
            at = int(given.ctypes.data) + marks
            first, last = own.within(begin, end)
            if first < last:
                source = self._given.address + first - own.begin
                ctypes.memmove(at + first - begin, source, last - first)
            yield self._round(f"rows.{capacity}", given, capacity, last=end == total)
            self._left &= set(np.flatnonzero(given[: self._size]).tolist())
            if address != 0:
                ctypes.memmove(address + begin, at, end - begin)

    def _round(self, what: str, given: np.ndarray, capacity: int, last: bool = False) -> Wait:
        """Pushes a round, whose result comes into `given`."""
        channel = self._channel
        connection = channel.client.connection
        name = f"{channel.name}.survivors.{what}{connection.view_suffix}"
        tensor = channel.declare(name, DType.U8, Op.BIT_OR, (WHOLE, WHOLE), 0, capacity)
        address = int(given.ctypes.data)
        round_ = connection.push_parts(tensor, address, [given.size], self._priority)
        return Wait(tensor, round_, address, given.size, not last)

    def _spans(self, places: list[int]) -> dict[int, _Piece]:
        """Returns where each rank's rows lie in a result of these ranks."""
        spans, at = {}, 0
        for place in places:
            nbytes = self._counts[place] * self._rows.row_bytes
            spans[place] = _Piece(at, at + nbytes)
            at += nbytes
        return spans

    def _room(self, places: list[int]) -> tuple[Any, int]:
        result, address = self._given.allocate(
            self._rows, [self._counts[place] for place in places]
        )
        return result, int(address)

    def _without_lost(self, left: list[int], address: int, rows: Any) -> Any:
        """Returns the rows of the ranks that are `left`, out of those of all that have told."""
        result, target = self._room(left)
        before = self._spans(sorted(self._counts))
        for place, span in self._spans(left).items():
            ctypes.memmove(
                target + span.begin, address + before[place].begin, span.end - span.begin
            )
        del rows  # It has held what lies at `address` until now.
        return result
