# SPDX-License-Identifier: Apache-2.0
"""A rank that counts its steps in its State before end_step(), or after it.

    late_counter.py STOP before|after

Prints "begins N", "step N of RANKS ranks" after each step, and "weights N" at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import talweg


def main() -> int:
    stop, is_late = Path(sys.argv[1]), sys.argv[2] == "after"
    talweg.init()
    state = talweg.State(weights=np.zeros(10), step=0, name="a")
    state.begin()
    print(f"begins {state.step}", flush=True)
    is_stopped = False
    while not is_stopped:
        told = np.array([stop.exists()], np.int32)
        is_stopped = bool(talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0])
        state.weights += 1
        state.step += not is_late
        state.end_step()
        state.step += is_late
        print(f"step {state.step} of {talweg.size()} ranks", flush=True)
    print(f"weights {state.weights[0]:g}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
