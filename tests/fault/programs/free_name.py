# SPDX-License-Identifier: Apache-2.0
"""A rank of elastic_test.py. A name means another tensor at each step, and so do calls without a
name.

It makes such steps before and after nodes come.
"""

from __future__ import annotations

import sys

import numpy as np
import talweg

_STEPS = 50  # The number of steps after a node has come.


def main() -> int:
    talweg.init()
    state = talweg.State(step=0)
    last = state.step + _STEPS if state.begin() else None
    print(f"begins at step {state.step}", flush=True)
    while state.step != last:
        length = state.step % 5 + 1
        try:
            sums = talweg.push_pull(np.ones(length, np.float32), "length", talweg.Op.SUM)
        except talweg.Aborted:
            print("aborted", flush=True)
        else:
            assert sums.shape == (length,) and len(set(sums)) == 1, sums
            print(f"step {state.step} of {sums[0]:.0f} ranks", flush=True)
        # The call goes on without lost ranks.
        sums = talweg.push_pull(np.ones(length + 1, np.float32), op=talweg.Op.SUM)
        assert sums.shape == (length + 1,) and len(set(sums)) == 1, sums
        state.step += 1
        change = state.end_step()
        if change is not None and change.joined:
            last = state.step + _STEPS
    print(f"done at step {state.step}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
