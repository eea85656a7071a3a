# SPDX-License-Identifier: Apache-2.0
"""One rank of left_behind_test.py. Rank 1 leaves after three rounds, and rank 0 wants a fourth."""

from __future__ import annotations

import numpy as np
import talweg

_ROUNDS = 3


def main() -> None:
    talweg.init()
    ones: np.ndarray = np.ones(100, np.float32)
    for _ in range(_ROUNDS):
        assert (talweg.push_pull(ones, op=talweg.Op.SUM, name="x") == 2).all()
    if talweg.rank() == 1:
        talweg.shutdown()
        return
    try:
        talweg.push_pull(ones, op=talweg.Op.SUM, name="x")
    except talweg.JobFailed as failure:
        print(f"rank 0: {failure}", flush=True)


if __name__ == "__main__":
    main()
