# SPDX-License-Identifier: Apache-2.0
"""A rank that measures its steps. The first step declares the tensors that it averages.

    first_step.py BYTES TENSORS STEPS

Rank 0 prints the seconds of each step as a JSON list.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import talweg


def main() -> None:
    nbytes, tensors, steps = map(int, sys.argv[1:])
    talweg.init()
    gradients: list[np.ndarray] = [
        np.ones(nbytes // 4 // tensors, np.float32) for _ in range(tensors)
    ]
    seconds = []
    for _ in range(steps):
        talweg.barrier()
        begin = time.monotonic()
        talweg.synchronize(
            talweg.grouped_push_pull_async(gradients, name="gradient", op=talweg.Op.AVERAGE)
        )
        seconds.append(time.monotonic() - begin)
    if talweg.rank() == 0:
        print(json.dumps(seconds), flush=True)
    talweg.shutdown()


if __name__ == "__main__":
    main()
