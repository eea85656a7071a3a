# SPDX-License-Identifier: Apache-2.0
"""A rank of lost_members_test.py: sparse sums that go on while ranks die in the middle of them.

Arguments: a seed, the way of the rows ("gathered" or "dealt"), then "rank:call" for each rank that
dies, with the call in which it does. It dies at a time of its own that the seed gives.
"""

from __future__ import annotations

import os
import random
import sys

import numpy as np
import talweg
from dying import die_soon, require_alike
from talweg._collectives import sparse_rows

_CALLS = 24
_ROWS = 1 << 20


def _rows(rank: int, call: int) -> tuple[np.ndarray, np.ndarray]:
    """What a rank gives: a row that only it has, with the call's number, and rows of all ranks."""
    many = (3, 0, 700, 40_000, 200_000)[call % 5]
    indices = np.concatenate([[rank], 100 + np.arange(many) * 3])
    values: np.ndarray = np.ones((len(indices), 4), np.float32)
    values[0] = call + 1
    return indices, values


def _check(got: talweg.SparseRows, call: int) -> list[int]:
    """Checks a sum. Returns the ranks whose rows are in it."""
    ranks = [int(each) for each in got.indices if each < 100]
    given = [_rows(rank, call) for rank in ranks]
    indices, places = np.unique(np.concatenate([each for each, _ in given]), return_inverse=True)
    values = np.concatenate([each[:, 0] for _, each in given])
    assert np.array_equal(got.indices, indices), call
    wanted = np.bincount(places, weights=values).astype(np.float32)
    wanted /= np.float32(len(ranks))
    assert (got.values == wanted[:, np.newaxis]).all(), (call, ranks)
    return ranks


def main() -> int:
    randomly = random.Random(f"{sys.argv[1]} {os.environ.get('TALWEG_RANK', '')}")
    sparse_rows._DEALT_BYTES_MIN = 0
    sparse_rows._DEALT_PART = 1e9 if sys.argv[2] == "dealt" else 0.0
    dies = {int(rank): int(call) for rank, call in (each.split(":") for each in sys.argv[3:])}
    talweg.init()
    rank, size = talweg.rank(), talweg.size()
    ranks_of_calls = []
    for call in range(_CALLS):
        if dies.get(rank) == call:
            die_soon(randomly)
        name = ("named", "other")[call % 2]
        handle = talweg.push_pull_sparse_async(*_rows(rank, call), _ROWS, name)
        ranks_of_calls.append(_check(talweg.synchronize(handle, timeout_s=60), call))
        assert rank in ranks_of_calls[-1]
    left = [each for each in range(size) if each not in dies]
    assert ranks_of_calls[-1] == left, ranks_of_calls
    require_alike(ranks_of_calls)
    talweg.end_step()
    got = talweg.push_pull_sparse(*_rows(talweg.rank(), 0), _ROWS, "named")
    assert _check(got, 0) == list(range(len(left)))
    print("has ended well", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
