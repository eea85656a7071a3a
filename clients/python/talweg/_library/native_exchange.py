# SPDX-License-Identifier: Apache-2.0
"""The calls of talweg_exchange.h: parts that lie apart, and a whole exchange in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from talweg import _interrupts
from talweg._library.native_arguments import checked_priority
from talweg._library.native_structures import CompressionSpec, ExchangeCall, PartOfRows, RowSum

_client_p = ctypes.c_void_p
_i32, _u32, _i64, _u64 = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64

EXCHANGE_BYTES_MAX = 16384
TIMEOUT = 1
# Python handles a signal (Ctrl-C) only between two calls.
WAIT_SLICE_NS = 200_000_000

# name: (result, arguments), as in talweg_exchange.h.
PROTOTYPES = {
    "talweg_left_out_count": (_u64, [_client_p, _u32]),
    "talweg_parts_held": (_u32, [_client_p, _u32]),
    "talweg_push_places": (
        ctypes.c_int,
        [
            _client_p,
            _u32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            _u64,
            _i32,
            _i64,
            ctypes.POINTER(_u64),
        ],
    ),
    "talweg_wait_places": (
        ctypes.c_int,
        [_client_p, _u32, _u64, ctypes.c_void_p, ctypes.c_void_p, _i64],
    ),
    "talweg_exchange": (
        ctypes.c_int,
        [
            _client_p,
            _u32,
            ctypes.POINTER(ExchangeCall),
            _i64,
            ctypes.POINTER(_u64),
            ctypes.POINTER(ctypes.c_int),
        ],
    ),
    "talweg_add_rows": (
        ctypes.c_int,
        [
            ctypes.POINTER(RowSum),
            ctypes.POINTER(PartOfRows),
            _u32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.POINTER(_u64),
        ],
    ),
    "talweg_compress": (
        ctypes.c_int,
        [
            ctypes.POINTER(CompressionSpec),
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            _u64,
        ],
    ),
    "talweg_finish_exchange": (
        ctypes.c_int,
        [_client_p, _u32, ctypes.POINTER(ExchangeCall), ctypes.POINTER(ctypes.c_int)],
    ),
}


class ExchangeCalls:
    """A Connection's calls of talweg_exchange.h."""

    _handle: Any
    _library: Any
    _check: Callable[[int], None]
    _check_pushes: Callable[[], None]
    _in_slices: Callable[..., None]
    _until: Callable[[Callable[[int], int], float | None], bool]

    def left_out_count(self, tensor: int) -> int:
        """Returns how many of the tensor's rounds went on without this rank."""
        return int(self._library.talweg_left_out_count(self._handle, tensor))

    def parts_held(self, tensor: int) -> int:
        """Returns how many parts the contribution has room for."""
        return int(self._library.talweg_parts_held(self._handle, tensor))

    def push_places(
        self,
        tensor: int,
        places: Sequence[int],
        lengths: Sequence[int],
        own: int = 0,
        priority: int = 0,
    ) -> int:
        """Pushes the parts that lie at `places`, with `lengths` in bytes, and returns the round.

        `own` is where this rank's part for itself is copied. 0: it is taken with the others.
        """
        self._check_pushes()
        count, round_ = len(places), _u64()
        addresses, parts = (ctypes.c_void_p * count)(*places), (_u64 * count)(*lengths)
        push, wire_priority = self._library.talweg_push_places, checked_priority(priority)
        self._in_slices(
            lambda slice_ns: push(
                self._handle,
                tensor,
                addresses,
                parts,
                own or None,
                0,
                wire_priority,
                slice_ns,
                ctypes.byref(round_),
            )
        )
        return round_.value

    def wait_places(
        self,
        tensor: int,
        round_: int,
        places: Sequence[int],
        rooms: Sequence[int],
        end: float | None = None,
    ) -> bool:
        """Waits as wait_parts() does. The parts go to `places`, which have `rooms` bytes each."""
        count = len(places)
        addresses, lengths = (ctypes.c_void_p * count)(*places), (_u64 * count)(*rooms)
        wait = self._library.talweg_wait_places
        return self._until(
            lambda slice_ns: wait(self._handle, tensor, round_, addresses, lengths, slice_ns), end
        )

    def exchange(self, tensor: int, call: Any, round_at: Any, alike_at: Any, round_: Any) -> bool:
        """Calls talweg_exchange. True: the exchange is over. False: it is pushed, but not over.

        `call`, `round_at` and `alike_at` are made by ctypes.byref(); `round_at` points to `round_`.
        """
        self._check_pushes()
        exchange = self._library.talweg_exchange
        while True:
            status = exchange(self._handle, tensor, call, WAIT_SLICE_NS, round_at, alike_at)
            if status != TIMEOUT:
                self._check(status)
                return True
            if round_.value != 0:
                return False
            _interrupts.deliver()

    def finish_exchange(self, tensor: int, call: Any, alike_at: Any) -> None:
        """Calls talweg_finish_exchange, for a round that wait_parts() has taken."""
        self._check(self._library.talweg_finish_exchange(self._handle, tensor, call, alike_at))
