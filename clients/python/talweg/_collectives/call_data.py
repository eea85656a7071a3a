# SPDX-License-Identifier: Apache-2.0
"""The data of a call: the rounds that carry it, beside the control round or after it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Steps, Wait
from talweg._collectives.kinds import (
    NOT_IN_PLACE,
    OWN,
    ROOT,
    ROW,
    Given,
    Kind,
    Lane,
    capacity_of,
    lane_of,
)
from talweg._collectives.words import Said
from talweg._declaration import DType, Op
from talweg.errors import Aborted, Mismatch, TalwegError


class Parts(NamedTuple):
    """Parts of a tensor, one after another."""

    address: int | None  # None: they lie nowhere, because nobody wants them.
    lengths: list[int]  # In bytes.

    def starts(self) -> list[int]:
        """Where each part begins."""
        assert self.address is not None
        starts, at = [], self.address
        for length in self.lengths:
            starts.append(at)
            at += length
        return starts


class ReducedData:
    """What this rank gives to a reduction. The data leaves in its own round beside the control
    round, unless it goes in the control round, or takes several rounds.
    """

    def __init__(
        self, channel: CallChannel, given: Given, parts: Parts, priority: int, turn: int
    ) -> None:
        self._channel = channel
        self._given = given
        self._parts = parts
        self._priority = priority
        self._turn = turn
        self.lane: Lane | None = None  # None: the data has not left.
        self.round = 0
        self.lies_there = False  # The result comes to where the data lies.
        self.failure: TalwegError | None = None  # The control round is taken all the same.

    def push(self, in_place: int) -> None:
        """Pushes the data through that in-place tensor. NOT_IN_PLACE: through that of a length."""
        channel, given = self._channel, self._given
        self.lies_there = False
        self.lane = lane = lane_of_given(channel, given, self._turn, in_place)
        if lane is None:
            return
        try:
            if lane.in_place > 0 and channel.in_place is not None:
                self.round, self.lies_there = channel.in_place.push(lane.in_place, given)
            else:
                source, lengths = self._parts
                assert source is not None
                tensor = channel.lane_tensor(lane)
                self.round = channel.client.connection.push_parts(
                    tensor, source, lengths, self._priority
                )
        except TalwegError as error:
            self.failure = error

    def drop(self) -> Steps:
        """Ends the round of the data, whose result nobody wants."""
        if self.lane is not None and self.failure is None:
            yield from _drop(self._channel, self.lane, self.round)

    def settle(self, every: Sequence[Said]) -> Steps:
        """Ends the rounds of data that ranks have begun for calls that do not fit together.

        Every rank takes part in each of these rounds, and gives nothing to a round that it has not
        begun. Nobody looks at the results: most rounds end with a Mismatch of their own.
        """
        channel, size = self._channel, self._channel.group.size
        for lane in dict.fromkeys(said.lane for said in every if said.lane is not None):
            round_ = self.round
            if lane != self.lane:
                nothing = [0] * lane.kind.parts_given(channel.group.place, 0, size)
                round_ = channel.client.connection.push_parts(
                    channel.lane_tensor(lane), 0, nothing, self._priority
                )
            yield from _drop(channel, lane, round_)

    def leave_in_place(self, every: Sequence[Said]) -> Steps:
        """Pushes the data again through no in-place tensor, because ranks make the same call but
        bring different in-place tensors, or some none. Nobody uses these again.
        """
        yield from self.settle(every)
        for number in {said.lane.in_place for said in every if said.lane is not None} - {0}:
            assert self._channel.in_place is not None
            self._channel.in_place.retire(number)
        self.push(NOT_IN_PLACE)
        if self.failure is not None:
            raise self.failure


def lane_of_given(
    channel: CallChannel, given: Given, turn: int, in_place: int = NOT_IN_PLACE
) -> Lane | None:
    """Returns the lane for this rank's reduction. None: it takes several rounds, or none."""
    assert given.rows is not None
    longest = max(given.part_rows) * given.rows.row_bytes
    of = (given.kind, given.dtype, given.op, given.root_rank, longest, channel.group.size)
    return lane_of(*of, in_place, turn)


def lane_of_said(channel: CallChannel, said: Said, turn: int) -> Lane:
    """Returns the lane for a reduction, even if the data would fit into the control round."""
    assert said.rows is not None
    nbytes = max(said.part_rows) * said.rows.row_bytes
    dtype, op, size = DType(said.dtype), Op(said.op), channel.group.size
    of = (said.kind, dtype, op, 0, nbytes, size)
    lane = said.lane or lane_of(*of, turn=turn)
    assert lane is not None
    return lane


def _drop(channel: CallChannel, lane: Lane, round_: int) -> Steps:
    nothing: np.ndarray = np.empty(lane.capacity_bytes, np.uint8)
    with contextlib.suppress(Mismatch, Aborted):
        yield Wait(channel.lane_tensor(lane), round_, int(nothing.ctypes.data), nothing.size)


def carry(
    channel: CallChannel,
    given: Given,
    priority: int,
    turn: int,
    own: Parts,
    got: Parts,
    largest: int,
    in_one: bool = False,
) -> Steps:
    """Brings this rank's `own` parts to the other ranks, and their parts for this rank to `got`.

    `largest` is the length of the longest part that a rank gives, in bytes. With `in_one` a tensor
    of exactly this length brings them in one round.
    """
    if largest == 0:
        return
    connection, size = channel.client.connection, channel.group.size
    capacity = capacity_of(given.kind, largest, size, channel.holds_own(), in_one)
    root = given.root_rank if ROOT in (given.kind.gives, given.kind.gets) else 0
    turns = (turn,) if channel.holds_own() else (turn, 1 - turn)
    lanes = [Lane(given.kind, given.dtype, given.op, root, capacity, turn=each) for each in turns]
    sources = own.starts()
    is_wanted = got.address is not None
    if is_wanted:
        targets = got.starts()
        at_home = _own_part(given.kind, channel.group.place, own, got)
    else:
        nowhere: np.ndarray = np.empty(capacity * len(got.lengths), np.uint8)
        targets = Parts(int(nowhere.ctypes.data), [capacity] * len(got.lengths)).starts()
        at_home = None
    waits: deque[Wait] = deque()
    try:
        for piece, begin in enumerate(range(0, largest, capacity)):
            if len(waits) == len(lanes):
                yield waits.popleft()
            tensor = channel.lane_tensor(lanes[piece % len(lanes)])
            pushed = [min(max(length - begin, 0), capacity) for length in own.lengths]
            places = [start + begin for start in sources]
            home = 0 if at_home is None else targets[at_home] + begin
            round_ = connection.push_places(tensor, places, pushed, home, priority)
            rooms = [min(max(length - begin, 0), capacity) for length in got.lengths]
            into = ([start + begin * is_wanted for start in targets], rooms)
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


def _own_part(kind: Kind, place: int, own: Parts, got: Parts) -> int | None:
    """Returns which of the parts that this rank gets is its own."""
    if not own.lengths or not got.lengths:
        return None
    return place if kind.gives in (OWN, ROW) else 0
