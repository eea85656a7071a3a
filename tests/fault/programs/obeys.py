# SPDX-License-Identifier: Apache-2.0
"""A rank that does what it is told, with a tensor of a quarter of a second's patience.

So long may it take until ranks that are told to push one after the other have pushed.

It prints "rank N", then it reads lines: "push" pushes the tensor's next round, "take" waits for it.
Each rank gives 1, 256, 65536, ... by its number. It prints "step N has [A, B, ...] of R ranks" for
each round that it takes: how many contributions of every rank the sum has, and how many ranks it
was told of.
"""

from __future__ import annotations

import sys

import numpy as np
import talweg
from talweg import Op

_BASE = 1 << 8  # There are fewer rounds.


def main() -> int:
    talweg.init()
    own = np.full(1000, float(_BASE ** talweg.rank()))
    talweg.declare("w", own.dtype, own.size, Op.SUM, patience=0.25)
    print(f"rank {talweg.rank()}", flush=True)
    print("step 3: it is told what to do", flush=True)  # Jobs wait for this step.
    step = 0
    handle = None
    for line in sys.stdin:
        if line.strip() == "push":
            handle = talweg.push_pull_async(own, "w", Op.SUM)
            print("has pushed", flush=True)
            continue
        assert handle is not None, line
        total = int(talweg.synchronize(handle)[0])
        step += 1
        counts = [total // _BASE**rank % _BASE for rank in range(talweg.size())]
        print(f"step {step} has {counts} of {handle.ranks_summed} ranks", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
