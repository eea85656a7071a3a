# SPDX-License-Identifier: Apache-2.0
"""A rank that counts its steps in its State, before or after end_step().

    late_counter.py STOP before|after|elsewhere

With "elsewhere" it counts before end_step() and takes batches of a sampler, but not if it has
joined.

It prints "begins N", "step N of RANKS ranks" after each step, and "weights N" at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import talweg

_LATE = ("after", "elsewhere")


def main() -> int:
    stop, is_late, is_elsewhere = Path(sys.argv[1]), *(sys.argv[2] == s for s in _LATE)
    talweg.init()
    sampler = talweg.ElasticSampler(100)
    state = talweg.State(weights=np.zeros(10), step=0, name="a", sampler=sampler)
    takes = not (state.begin() and is_elsewhere)
    batches = iter(sampler)
    print(f"begins {state.step}", flush=True)
    is_stopped = False
    while not is_stopped:
        told = np.array([stop.exists()], np.int32)
        is_stopped = bool(talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0])
        if takes and next(batches, None) is None:
            sampler.set_epoch(sampler.epoch + 1)
            batches = iter(sampler)
            next(batches)
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
