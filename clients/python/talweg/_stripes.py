# SPDX-License-Identifier: Apache-2.0
"""Buffers one after another, of which each of several ranks has its stripe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

# Stripes begin where the bytes of no element are cut, whatever its dtype.
_ALIGNMENT = 64


def stripe_of(total: int, place: int, count: int) -> tuple[int, int]:
    """Where the stripe of that place, of `count`, begins and ends in so many bytes."""
    each = -(-total // count)
    each += -each % _ALIGNMENT
    return min(place * each, total), min((place + 1) * each, total)


def parts_of(buffers: Sequence[np.ndarray], begin: int, end: int) -> Iterator[np.ndarray]:
    """What of each buffer lies in there."""
    position = 0
    for buffer in buffers:
        first, last = max(begin - position, 0), min(end - position, buffer.size)
        if first < last:
            yield buffer[first:last]
        position += buffer.size


def copy_out(
    buffers: Sequence[np.ndarray], begin: int, end: int, room: np.ndarray | None = None
) -> np.ndarray:
    """A copy of those bytes, in `room`, if they fit there."""
    if room is None or room.size < end - begin:
        room = np.empty(end - begin, np.uint8)
    copied = room[: end - begin]
    position = 0
    for part in parts_of(buffers, begin, end):
        copied[position : position + part.size] = part
        position += part.size
    return copied


def copy_in(buffers: Sequence[np.ndarray], begin: int, data: np.ndarray) -> None:
    """Writes `data` to where they begin."""
    position = 0
    for part in parts_of(buffers, begin, begin + data.size):
        part[:] = data[position : position + part.size]
        position += part.size
