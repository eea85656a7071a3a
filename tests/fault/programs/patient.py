# SPDX-License-Identifier: Apache-2.0
"""A rank whose sums go on without late ranks.

Each rank gives 1, 2, 4, ... by its number, once in each round, so that a sum tells whose
contributions it has, and how many of each: a rank that was left out of a round gives that round's
with the next. The last rank is late in every third step. Each rank prints how many contributions of
every rank it has got, and ranks compare what they have got.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import talweg
from talweg import Op

_COUNT = 100_000
_BASE = 1 << 10  # There are fewer steps.
_RANKS = 4
_PATIENCE_S = 0.01
_PAUSE_S = 0.1


def main() -> int:
    talweg.init()
    rank = talweg.rank()
    is_slow = rank == talweg.size() - 1
    talweg.declare("patient", np.float64, _COUNT, Op.SUM, patience=_PATIENCE_S)
    step = 0
    total = np.zeros(_COUNT)
    try:
        while True:
            if is_slow and step % 3 == 1:
                time.sleep(_PAUSE_S)
            result = talweg.push_pull(np.full(_COUNT, float(_BASE**rank)), "patient", Op.SUM)
            if not (result == result[0]).all():
                raise AssertionError(f"step {step}: {result[result != result[0]][:9]}")
            total += result
            step += 1
            got = [int(total[0]) // _BASE**place % _BASE for place in range(_RANKS)]
            print(f"step {step} of rank {rank} has got {got}", flush=True)
            if step % 20 == 0:
                _compare(total, step)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3


def _compare(total: np.ndarray, step: int) -> None:
    """This round waits for all: they have as many steps, and the same results."""
    least = talweg.push_pull(total[:1], "least", Op.MIN)
    greatest = talweg.push_pull(total[:1], "greatest", Op.MAX)
    if least != greatest:
        raise AssertionError(f"after step {step} ranks have {least} and {greatest}")
    print(f"all alike after step {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
