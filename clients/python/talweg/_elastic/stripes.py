# SPDX-License-Identifier: Apache-2.0
"""Divides a row of buffers into stripes, one for each of several ranks, and copies stripes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

# Stripes begin at multiples of this, so no element of any dtype is cut.
_ALIGNMENT = 64
# How much a thread copies at once, and so the most that anybody waits for it.
_SLICE_BYTES = 1 << 20


def stripe_of(total: int, place: int, count: int) -> tuple[int, int]:
    """Returns where stripe `place` of `count` begins and ends in `total` bytes."""
    each = -(-total // count)
    each += -each % _ALIGNMENT
    return min(place * each, total), min((place + 1) * each, total)


def parts_of(buffers: Sequence[np.ndarray], begin: int, end: int) -> Iterator[np.ndarray]:
    """Yields the part of each buffer that lies between `begin` and `end`."""
    position = 0
    for buffer in buffers:
        first, last = max(begin - position, 0), min(end - position, buffer.size)
        if first < last:
            yield buffer[first:last]
        position += buffer.size


def copy_out(
    buffers: Sequence[np.ndarray], begin: int, end: int, room: np.ndarray | None = None
) -> np.ndarray:
    """Returns a copy of the bytes from `begin` to `end`, in `room` if they fit there."""
    if room is None or room.size < end - begin:
        room = np.empty(end - begin, np.uint8)
    copied = room[: end - begin]
    position = 0
    for part in parts_of(buffers, begin, end):
        copied[position : position + part.size] = part
        position += part.size
    return copied


class Copying:
    """A copy of a stripe, which a thread makes beside the program while the buffers stay as they
    are. A thread that is about to change them calls finish() first.
    """

    def __init__(
        self,
        buffers: Sequence[np.ndarray],
        begin: int,
        end: int,
        room: np.ndarray | None = None,
        steady: int | None = None,
    ) -> None:
        """The copy goes to `room`, if it fits there. Only the first `steady` buffers (None: all)
        stay as they are from now on, so the others are copied at once.
        """
        if room is None or room.size < end - begin:
            room = np.empty(end - begin, np.uint8)
        self.stripe = room[: end - begin]
        # Bytes that finish() has copied, because the thread had not.
        self.hurried_bytes = 0
        self._lock = threading.Lock()
        self._is_hurried = False
        self._left: list[tuple[np.ndarray, np.ndarray]] = []  # In reverse order.
        lazy_bytes = sum(buffer.size for buffer in buffers[:steady])
        position = 0
        for part in parts_of(buffers, begin, end):
            target = self.stripe[position : position + part.size]
            lazy = min(max(lazy_bytes - begin - position, 0), part.size)
            target[lazy:] = part[lazy:]
            for first in range(0, lazy, _SLICE_BYTES):
                last = min(first + _SLICE_BYTES, lazy)
                self._left.append((target[first:last], part[first:last]))
            position += part.size
        self._left.reverse()

    @property
    def is_over(self) -> bool:
        """Whether the copy is complete, or finish() completes it."""
        return self._is_hurried or not self._left

    def copy_some(self) -> None:
        """Copies a slice. The thread calls it."""
        with self._lock:
            if self._left:
                self._copy_slice()

    def finish(self) -> None:
        """Copies what is left. Returns when the copy is complete."""
        self._is_hurried = True
        with self._lock:
            while self._left:
                self.hurried_bytes += self._copy_slice()

    def drop(self) -> None:
        """Copies nothing more, because nobody wants the stripe any more."""
        with self._lock:
            self._left = []

    def _copy_slice(self) -> int:
        target, source = self._left.pop()
        target[:] = source
        return target.size


def copy_in(buffers: Sequence[np.ndarray], begin: int, data: np.ndarray) -> None:
    """Writes `data` into the buffers, from byte `begin` on."""
    position = 0
    for part in parts_of(buffers, begin, begin + data.size):
        part[:] = data[position : position + part.size]
        position += part.size
