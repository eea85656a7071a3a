# SPDX-License-Identifier: Apache-2.0
"""A rank of lost_members_test.py: gathers that go on while ranks die in the middle of them.

Arguments: a seed, then "rank:call" for each rank that dies, with the call in which it does. It dies
at a time of its own that the seed gives: before the call, as the call begins, or up to 30 ms after.
"rank:call:between" dies when it has told what it brings, and before the first or second round of its
rows.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import numpy as np
import talweg
from dying import die_soon, require_alike
from talweg._collectives import survivors_gather

_CALLS = 24
_NODES = 4


def _rows(rank: int, call: int) -> np.ndarray:
    """What a rank gives: few rows, none, or some MB, which take several rounds."""
    many = (3, 0, 700, 40_000, 1_500_000)[call % 5]
    rows: np.ndarray = np.full((many + rank * (call % 3), 2), 1000 * call + rank, np.float64)
    return rows


def _die_between_rounds(randomly: random.Random) -> None:
    """Dies in the next call that goes on without a lost rank, and has several rounds of rows."""
    left = randomly.randint(1, 2)
    push = survivors_gather._Call._round

    def push_or_die(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= arguments[1].startswith("rows")
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return push(*arguments, **options)

    survivors_gather._Call._round = push_or_die  # type: ignore[method-assign]


def main() -> int:
    randomly = random.Random(f"{sys.argv[1]} {os.environ.get('TALWEG_RANK', '')}")
    dies = {
        int(rank): (int(call), how) for rank, call, *how in (x.split(":") for x in sys.argv[2:])
    }
    talweg.init()
    rank, size = talweg.rank(), talweg.size()
    pair = talweg.ProcessSet([1, 2])
    ranks_of_calls = []
    for call in range(_CALLS):
        if rank in dies and dies[rank][0] == call:
            (_die_between_rounds if dies[rank][1] else die_soon)(randomly)
        mine = _rows(rank, call)
        if call % 4 == 3:  # In the middle of others, with one handle.
            calls = [mine, mine + 0.5]
            every = talweg.grouped_all_gather_survivors(calls, "grouped", timeout_s=60)
        else:
            name = (None, "named", "other")[call % 3]
            handle = talweg.all_gather_survivors_async(mine, name)
            every = [talweg.synchronize(handle, timeout_s=60)]
        for more, (rows, ranks) in enumerate(every):
            wanted = np.concatenate([_rows(each, call) + more / 2 for each in ranks])
            assert rows.dtype == np.float64 and rows.shape == wanted.shape, (call, rows.shape)
            assert (rows == wanted).all(), (call, ranks)
            assert rank in ranks and list(ranks) == sorted(ranks), ranks
            ranks_of_calls.append(ranks)
        if pair.included():
            of_pair = talweg.all_gather_survivors(np.array([rank]), process_set=pair)
            assert of_pair.rows.tolist() == list(of_pair.ranks), of_pair
    left = tuple(each for each in range(size) if each not in dies)
    assert ranks_of_calls[-1] == left, ranks_of_calls
    require_alike(ranks_of_calls)
    try:  # Ranks that are left differ: all hear it, and the next call goes on.
        talweg.all_gather_survivors(np.zeros((1, 2 + (rank == left[0]))), "differ")
    except talweg.Mismatch as mismatch:
        assert f"rank {left[1]}" in str(mismatch) and "differ" in str(mismatch), mismatch
    else:
        raise AssertionError("rows of two shapes")
    assert talweg.all_gather_survivors(np.array([rank]), "differ").ranks == left
    talweg.end_step()
    rows, ranks = talweg.all_gather_survivors(np.array([talweg.rank()]), "named")
    assert rows.tolist() == list(ranks) == list(range(len(left))), (rows, ranks)
    print("has ended well", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
