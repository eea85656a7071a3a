# SPDX-License-Identifier: Apache-2.0
"""One call of a channel, from its control round to its result."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from talweg._collectives.call_channel import CallChannel, long_lane
from talweg._collectives.call_data import Parts, ReducedData, carry
from talweg._collectives.callers import callers
from talweg._collectives.channels import Steps, Wait
from talweg._collectives.kinds import (
    ALL_REDUCE,
    IN_ONE,
    INLINE_BYTES,
    NOT_IN_PLACE,
    WANTS_IN_PLACE,
    Given,
    Rows,
    is_long,
)
from talweg._collectives.lost_ranks import lost_rank
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
from talweg.errors import Aborted, Mismatch


def steps(channel: CallChannel, given: Given, priority: int) -> Steps:
    """The steps of one call."""
    try:
        return (yield from _Call(channel, given, priority).steps())
    except Aborted as aborted:
        raise lost_rank(aborted, channel.text_of(given.call or given.kind.name)) from None


class _Call:
    """What this rank does in a call that it makes.

    Its steps:
        _push                says what it calls, and gives what can leave at once
        the control round    every rank has said what it calls
        _ends_in_one_round   the data was in it: nothing is left to do
        _compare             all have said the same, or what fits together; else Mismatch
        _make_room           for the result
        _take_data           from the control round, from the reduction's own, or from further ones
        _finish              applies factors
    """

    def __init__(self, channel: CallChannel, given: Given, priority: int) -> None:
        self._channel = channel
        self._given = given
        self._priority = priority
        self._row_bytes = given.rows.row_bytes if given.rows is not None else 0
        # After the control round.
        self._are_alike = False  # Every rank has said what this one has.
        self._rows: Rows
        self._got_rows: list[int] = []  # For each part that this rank gets.
        # What each rank has said. None if the data travels in a round of its own, where nobody
        # needs it.
        self._every: list[Said] | None = None
        self._result: Any = None
        self._out = 0

    def steps(self) -> Steps:
        """Yields whenever the call waits; returns the call's result."""
        given = self._given
        if given.is_ready is not None:
            yield Wait(0, 0, 0, 0, is_ready=given.is_ready)
        wait = self._push()
        data = self._data
        try:
            yield wait
        except Aborted:
            yield from data.drop()
            raise
        if data.failure is not None:
            raise data.failure
        if self._ends_in_one_round():
            return self._result
        yield from self._compare()
        yield from self._make_room()
        yield from self._take_data()
        return self._result

    def _push(self) -> Wait:
        channel, given = self._channel, self._given
        own_bytes = sum(given.part_rows) * self._row_bytes
        source, is_reduction = given.address, given.kind.reduces
        inline = own_bytes <= INLINE_BYTES and (not is_reduction or channel.holds_own())
        if given.in_place == WANTS_IN_PLACE:
            tensors = channel.in_place if channel.holds_own() and not inline else None
            given.in_place = tensors.number_of(given) if tensors is not None else NOT_IN_PLACE
        elif given.kind is ALL_REDUCE and channel.goes_in_one(given, own_bytes):
            given.in_place = IN_ONE
        said = self._words = block(given)
        if is_reduction and given.factors.prescale != 1.0:
            given.keep, source = given.factors.scaled(
                channel.client, given.dtype, source, own_bytes
            )
        self._one_round = channel.one_round(given, said)
        if inline:
            said += ctypes.string_at(source, own_bytes)
        channel.client.count_pushed_bytes(own_bytes)
        self._control = control = channel.control()
        round_ = given.pushed or channel.client.connection.push_parts(
            control, said, [len(said)], self._priority
        )
        self._turn = turn = channel.turn_of(round_)
        self._own = Parts(source, [count * self._row_bytes for count in given.part_rows])
        self._data = ReducedData(channel, given, self._own, self._priority, turn)
        if is_reduction and not inline:
            self._data.push(given.in_place)
        all_pushed = self._data.lane is not None or (inline and given.kind.equal)
        return Wait(control, round_, channel.said_at, channel.said.size, not all_pushed)

    def _ends_in_one_round(self) -> bool:
        given, one_round = self._given, self._one_round
        if one_round is None:
            return False
        assert given.rows is not None
        self._rows, self._got_rows = given.rows, one_round.got_rows
        self._result, self._out = given.allocate(given.rows, one_round.got_rows)
        if not one_round.finish(self._channel.client.connection, self._control, self._out):
            return False
        self._finish()
        return True

    def _compare(self) -> Steps:
        """Finds out whether ranks' calls fit together, what the tensor is, and which parts come
        here.
        """
        channel, given, group = self._channel, self._given, self._channel.group
        self._are_alike = channel.same(self._words)
        if self._data.lane is not None and self._are_alike:
            assert given.rows is not None
            self._rows, self._got_rows = given.rows, got_alike(given, group)
            if given.in_place == IN_ONE:
                channel.note_long(self._data.lane)
            return
        told = channel.read_said(self._turn)
        for said in told:
            if said.lane is not None and is_long(said.kind, said.lane.capacity_bytes, group.size):
                channel.note_long(said.lane)
        every = self._fitting(told)
        if every is None:
            yield from self._end_apart(told)
            return
        if any(said.lane != self._data.lane for said in every):
            yield from self._data.leave_in_place(every)
        self._got = got_parts(given, group, every)
        self._got_rows = [every[place].part_rows[part] for place, part in self._got]
        if given.kind.reduces and self._data.lane is None and has_joined(told):
            # Joined ranks could not give their zeros in the control round.
            self._data.push(NOT_IN_PLACE)
            if self._data.failure is not None:
                raise self._data.failure
        self._every = every if self._data.lane is None else None

    def _fitting(self, told: list[Said]) -> list[Said] | None:
        """Returns what each rank brings. None: the calls do not fit together."""
        try:
            return self._fit(told)
        except Mismatch:
            return None

    def _fit(self, told: list[Said], who: Sequence[Caller] = ()) -> list[Said]:
        channel, group = self._channel, self._channel.group
        every = with_stand_ins(channel.title, group, told, who) if has_joined(told) else told
        self._rows = check_alike(channel.title, group, every, None, who)
        return every

    def _end_apart(self, told: list[Said]) -> Steps:
        """Ends a call that does not fit together with the others' calls: raises Mismatch."""
        yield from self._data.settle(told)
        who = yield from callers(self._channel, self._given, told)
        try:
            self._fit(told, who)
        except Mismatch as mismatch:
            mismatch.ends_all = end_apart(told)
            raise

    def _make_room(self) -> Steps:
        try:
            self._result, self._out = self._given.allocate(self._rows, self._got_rows)
        except (
            Exception
        ):  # No memory, or no such dtype: other ranks get their results all the same.
            if self._data.lane is not None:
                yield from self._data.drop()
            elif self._every is not None and not all(said.inline for said in self._every):
                yield from self._carry(self._every, None)
            raise

    def _take_data(self) -> Steps:
        channel, data = self._channel, self._data
        if data.lane is not None:
            room = (0, 0) if data.lies_there else (self._out, sum(self._got_bytes()))
            tensor = channel.lane_tensor(data.lane)
            yield Wait(tensor, data.round, *room, False, next_may_begin=channel.overlaps)
        elif self._every is not None and all(said.inline for said in self._every):
            self._copy_inline(self._every)
        elif self._every is not None:
            yield from self._carry(self._every, self._out)
        if (
            self._given.in_place == WANTS_IN_PLACE
            and self._are_alike
            and channel.in_place is not None
        ):
            channel.in_place.agree(self._given)
        self._finish()

    def _copy_inline(self, every: list[Said]) -> None:
        """Takes copies of at most 4 KiB a rank from the control round, where they came."""
        out = self._out
        for (place, part), nbytes in zip(self._got, self._got_bytes()):
            before = sum(every[place].part_rows[:part]) * self._rows.row_bytes
            ctypes.memmove(out, self._channel.said_at + every[place].data_at + before, nbytes)
            out += nbytes

    def _carry(self, every: list[Said], out: int | None) -> Steps:
        longest = max((max(said.part_rows, default=0) for said in every), default=0)
        largest = longest * self._rows.row_bytes
        channel, given, got = self._channel, self._given, Parts(out, self._got_bytes())
        in_one = not given.kind.reduces and channel.goes_in_one(given, largest)
        if in_one:
            channel.note_long(long_lane(given, largest))
        of = (channel, given, self._priority, self._turn, self._own, got)
        yield from carry(*of, largest, in_one)

    def _got_bytes(self) -> list[int]:
        return [count * self._rows.row_bytes for count in self._got_rows]

    def _finish(self) -> None:
        given, got_bytes = self._given, sum(self._got_rows) * self._rows.row_bytes
        finish = given.factors.after(
            self._channel.client, given.dtype, self._out, got_bytes // given.dtype.nbytes
        )
        if finish is not None:
            finish()
