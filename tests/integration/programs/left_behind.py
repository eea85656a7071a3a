# SPDX-License-Identifier: Apache-2.0
"""One rank of left_behind_test.py. Rank 1 leaves after three rounds, and rank 0 wants a fourth.

With "open" as argument rank 1 begins the fourth, too, and leaves before it is over.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import talweg

_ROUNDS = 3


def _await_end_of_an_agent() -> None:
    daemons = [Path("/proc", pid) for pid in os.environ["TALWEG_RUN_DAEMONS"].split(",")]
    while all(daemon.exists() for daemon in daemons):
        time.sleep(0.01)


def main() -> None:
    talweg.init()
    begins_another = sys.argv[1:] == ["open"]
    ones: np.ndarray = np.ones(100, np.float32)
    for _ in range(_ROUNDS):
        assert (talweg.push_pull(ones, op=talweg.Op.SUM, name="x") == 2).all()
    if talweg.rank() == 1:
        if begins_another:
            talweg.push_pull_async(ones, op=talweg.Op.SUM, name="x")
        talweg.shutdown()
        return
    if begins_another:
        _await_end_of_an_agent()
    try:
        talweg.push_pull(ones, op=talweg.Op.SUM, name="x")
    except talweg.JobFailed as failure:
        print(f"rank 0: {failure}", flush=True)


if __name__ == "__main__":
    main()
