# SPDX-License-Identifier: Apache-2.0
"""A rank that makes given collective calls, checks their results, and prints "done".

A line of its input has a call, the bytes of the larger of a rank's input and result, and a count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import talweg


def _reduce_scatter(count: int) -> bool:
    got = talweg.reduce_scatter(np.full(count, talweg.rank() + 1, np.float32), op=talweg.Op.SUM)
    size = talweg.size()
    return len(got) == count // size and bool((got == size * (size + 1) // 2).all())


def _all_to_all(count: int) -> bool:
    got, _ = talweg.all_to_all(np.full(count, talweg.rank(), np.float32))
    return bool((got == np.repeat(np.arange(talweg.size()), count // talweg.size())).all())


def _all_gather(count: int) -> bool:
    own = count // talweg.size()
    got = talweg.all_gather(np.full(own, talweg.rank(), np.float32))
    return bool((got == np.repeat(np.arange(talweg.size()), own)).all())


_CALLS: dict[str, Callable[[int], bool]] = {
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_gather": _all_gather,
}


def main() -> int:
    talweg.init()
    for line in sys.stdin:
        call, size, times = line.split()
        for _ in range(int(times)):
            if not _CALLS[call](int(size) // 4):
                print(f"WRONG {call}", flush=True)
                return 1
        print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
