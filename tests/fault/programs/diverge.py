# SPDX-License-Identifier: Apache-2.0
"""A rank whose weights become different from the others'.

    diverge.py RANK STEP EVERY

Rank RANK changes its weights in step STEP; if STEP is "joined", in a joiner's first step. The
program prints "step N" after each step, and "error KIND: TEXT" at the end.
"""

from __future__ import annotations

import sys

import numpy as np
import talweg


def main() -> int:
    victim, when, every = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    talweg.init()
    state = talweg.State(weights=np.zeros(1000, np.float32), step=0)
    state.check_every(every)
    try:
        joined = state.begin()
        for ended in range(100_000):
            own: np.ndarray = np.full(1000, state.step, np.float32)
            state.weights += talweg.push_pull(own, name="gradient")
            is_time = joined and ended == 0 if when == "joined" else state.step == int(when)
            if talweg.rank() == victim and is_time:
                state.weights[7] += np.float32(0.5)
            state.step += 1
            state.end_step()
            print(f"step {state.step}", flush=True)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
