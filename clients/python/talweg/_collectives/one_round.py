# SPDX-License-Identifier: Apache-2.0
"""Calls that take one round if all ranks make the same call. One native call makes each."""

from __future__ import annotations

import ctypes

from talweg._collectives.kinds import INLINE_BYTES, OWN, ROW, WHOLE, Given
from talweg._collectives.process_sets import Group
from talweg._collectives.words import got_alike
from talweg._declaration import Op
from talweg._library import native
from talweg._library.native_exchange import EXCHANGE_BYTES_MAX
from talweg._library.native_structures import ExchangeCall


class OneRound:
    """All calls for which a rank says the same words. One thread at a time uses it."""

    def __init__(self, given: Given, words: bytes, group: Group, said_at: int, said_bytes: int):
        assert given.rows is not None
        kind, place, row_bytes = given.kind, group.place, given.rows.row_bytes
        self.got_rows = got_alike(given, group)
        # The part of each rank's data that this rank gets.
        part = place if kind.gives == ROW or kind.gets == OWN else 0
        self._call = ExchangeCall(
            ctypes.sizeof(ExchangeCall),
            words,
            len(words),
            None,
            sum(given.part_rows) * row_bytes,
            said_at,
            said_bytes,
            given.op if kind.reduces else Op.BROADCAST,
            given.dtype,
            sum(given.part_rows[:part]) * row_bytes,
            given.part_rows[part] * row_bytes if self.got_rows else 0,
            None,
        )
        self._round, self._alike = ctypes.c_uint64(), ctypes.c_int()
        self._call_at = ctypes.byref(self._call)
        self._round_at, self._alike_at = ctypes.byref(self._round), ctypes.byref(self._alike)

    @staticmethod
    def may_be(given: Given, holds_own: bool) -> bool:
        """Whether the call can take one round. `holds_own`: see CallChannel.holds_own."""
        if given.rows is None or not (
            given.kind.gives in (OWN, ROW) or (given.kind.gives == WHOLE and holds_own)
        ):
            return False
        nbytes = sum(given.part_rows) * given.rows.row_bytes
        words = 256 + 8 * len(given.part_rows)
        return nbytes <= INLINE_BYTES and words + nbytes <= EXCHANGE_BYTES_MAX

    def run(self, connection: native.Connection, tensor: int, address: int, out: int) -> int:
        """Makes the call. Returns 0 if it is over, with its result at `out`. Otherwise returns its
        round: ranks have said other words, or not all have come yet.
        """
        self._call.data, self._call.out = address, out
        if (
            connection.exchange(tensor, self._call_at, self._round_at, self._alike_at, self._round)
            and self._alike.value
        ):
            return 0
        return self._round.value

    def finish(self, connection: native.Connection, tensor: int, out: int) -> bool:
        """Brings the round's data to `out`. Returns False if ranks have said other words."""
        self._call.data, self._call.out = None, out
        connection.finish_exchange(tensor, self._call_at, self._alike_at)
        return bool(self._alike.value)
