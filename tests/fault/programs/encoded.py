# SPDX-License-Identifier: Apache-2.0
"""A rank that sums tensors of the encodings that its arguments name. It prints each step.

Most elements are 0. The others say how many ranks are in a sum. It must be the same for all tensors
of a step, unless a loss has come between them: then the next step has the fewer ranks.
"""

from __future__ import annotations

import sys

import numpy as np
import talweg
from talweg import _client
from talweg._declaration import DType, Op

_ENCODINGS = {"plain": 0, "runs": 1, "twice": 2, "gaps": 5}
_COUNT = 300_000
_WHOLE = 1


def _declare(encoding: str) -> int:
    return _client.current().connection.declare_collective(
        encoding,
        DType.I32,
        Op.SUM,
        (_WHOLE, _WHOLE),
        0,
        (),
        _COUNT,
        encoding=_ENCODINGS[encoding],
    )


def _step(tensors: list[int], step: int) -> set[int]:
    """Sums all tensors once. Returns how many ranks are in each of the sums."""
    connection = _client.current().connection
    given: np.ndarray = np.zeros(_COUNT, np.int32)
    given[step % 1000 :: 1000] = step
    result = np.empty_like(given)
    rounds = [connection.push_parts(tensor, given.ctypes.data, None) for tensor in tensors]
    rank_counts = set()
    for tensor, round_ in zip(tensors, rounds, strict=True):
        connection.wait_parts(tensor, round_, result.ctypes.data, result.nbytes)
        ranks = int(result[step % 1000]) // step
        if not 1 <= ranks <= talweg.size() or not (result == given * ranks).all():
            raise AssertionError(f"step {step}: {result[:2000]}")
        rank_counts.add(ranks)
    return rank_counts


def _may_follow(counts: set[int], before: set[int]) -> bool:
    if len(before) > 1:
        return counts == {min(before)}
    return len(counts) == 1 or (len(counts) == 2 and max(counts) in before)


def main() -> int:
    talweg.init()
    tensors = [_declare(encoding) for encoding in sys.argv[1:] or _ENCODINGS]
    step = 0
    before = {talweg.size()}
    try:
        while True:
            counts = _step(tensors, step + 1)
            if not _may_follow(counts, before):
                raise AssertionError(f"step {step + 1} has {counts} ranks, after {before}")
            before = counts
            ranks = min(counts)
            step += 1
            print(f"step {step} of rank {talweg.rank()}, {ranks} in each sum", flush=True)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3


if __name__ == "__main__":
    sys.exit(main())
