# SPDX-License-Identifier: Apache-2.0
"""A rank that sums floats whose bytes may travel rounded (option encoding of the agents).

It prints each step. All ranks give the same numbers, so a sum says how many ranks are in it, and how
far it is off. All ranks must get the same bits. An argument says what else must hold: `plain`, the
sums may be exact; `signs`, of two distinct numbers they are. Without one they must be rounded.
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
import talweg
from talweg import Op

_COUNT = 300_000
_BLOCK = 256  # Numbers that have one scale.
_LEVELS = 127


def _levels_of(given: np.ndarray) -> np.ndarray:
    """Returns for each number the distance between two numbers that 8 bits can say there."""
    padded: np.ndarray = np.zeros(-(-given.size // _BLOCK) * _BLOCK, np.float32)
    padded[: given.size] = np.abs(given)
    levels = padded.reshape(-1, _BLOCK).max(1) / _LEVELS
    return np.asarray(np.repeat(levels, _BLOCK)[: given.size])


def _step(step: int, kind: str) -> int:
    """Sums once. Returns how many ranks are in the sum."""
    given = np.random.default_rng(step).standard_normal(_COUNT, np.float32)
    if kind == "signs":
        given = np.copysign(np.float32(0.5), given)
    result = talweg.push_pull(given, "rounded", Op.SUM)
    ranks = round(float(result @ given) / float(given @ given))
    errors = result / max(ranks, 1) - given
    # Each contribution is off by less than a level, and so is the sum, whose levels are as many
    # times as large as it has ranks. Slices need not begin where these blocks do.
    levels = np.maximum.reduce([np.roll(_levels_of(given), by) for by in (-_BLOCK, 0, _BLOCK)])
    if not 1 <= ranks <= talweg.size() or not (np.abs(errors) <= 2.01 * levels).all():
        raise AssertionError(f"step {step}, {ranks} ranks: {result[:9]} of {given[:9]}")
    # Rounding has no direction: the mean of so many errors is far smaller than one.
    if abs(float(errors.mean())) > 0.02 * float(levels.mean()):
        raise AssertionError(f"step {step}: the mean error is {errors.mean()}")
    if kind == "rounded" and not errors.any():
        raise AssertionError(f"step {step}: nothing was rounded")
    if kind == "signs" and errors.any():
        raise AssertionError(f"step {step}: something was rounded")
    digest = np.array([zlib.crc32(result.tobytes())], np.int64)
    least = talweg.push_pull(digest, "least", Op.MIN)
    greatest = talweg.push_pull(digest, "greatest", Op.MAX)
    if least != greatest:
        raise AssertionError(f"step {step}: ranks have different bits")
    return ranks


def main() -> int:
    kind = sys.argv[1] if len(sys.argv) > 1 else "rounded"
    talweg.init()
    step = 0
    try:
        while True:
            ranks = _step(step + 1, kind)
            step += 1
            print(f"step {step} of rank {talweg.rank()}, {ranks} in each sum", flush=True)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3


if __name__ == "__main__":
    sys.exit(main())
