# SPDX-License-Identifier: Apache-2.0
"""What a joined rank (hvd.join()), which makes no calls, does in the others' calls."""

from __future__ import annotations

import numpy as np

from talweg._collectives.call_channel import CallChannel
from talweg._collectives.call_data import Parts, ReducedData, carry, lane_of_said
from talweg._collectives.callers import callers
from talweg._collectives.channels import Steps, Wait
from talweg._collectives.kinds import JOINED, Given
from talweg._collectives.words import block, with_stand_ins
from talweg._library import native_arguments
from talweg.errors import Mismatch


def steps_of_joined(channel: CallChannel) -> Steps:
    """Takes this rank's part in the others' next call. Has no result.

    The rank gives zeros to a reduction, and no rows to an all_gather that goes on without it.
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
        yield from ReducedData(channel, given, Parts(0, []), 0, turn).settle(told)
        yield from callers(channel, given, told)
        return
    stand_in = every[group.place]
    assert stand_in.rows is not None
    row_bytes = stand_in.rows.row_bytes
    own = [count * row_bytes for count in stand_in.part_rows]
    if stand_in.kind.reduces:
        if sum(own) > 0:
            lane = lane_of_said(channel, stand_in, turn)
            zeros: np.ndarray = np.zeros(sum(own), np.uint8)
            address = int(zeros.ctypes.data)
            tensor = channel.lane_tensor(lane)
            carried = connection.push_parts(tensor, address, own)
            yield Wait(tensor, carried, address, zeros.size, False)
    elif not all(said.inline for said in every):
        lengths = [said.part_rows[0] * row_bytes for said in every]
        scratch: np.ndarray = np.empty(sum(lengths), np.uint8)
        got = Parts(int(scratch.ctypes.data), lengths)
        given = Given(stand_in.kind, 0, stand_in.rows, [0], 0, None, lambda rows, counts: (None, 0))
        yield from carry(channel, given, 0, turn, Parts(got.address, own), got, max(lengths))
