# SPDX-License-Identifier: Apache-2.0
"""A rank that pushes rounds of so many numbers. It prints each round, and how it ends."""

from __future__ import annotations

import sys

import numpy as np
import talweg


def main() -> int:
    talweg.init()
    size = talweg.size()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    step = 0
    try:
        while True:
            small = talweg.push_pull_async(np.full(10, 1, np.int32), op=talweg.Op.SUM, name="small")
            large: np.ndarray = np.full(count, talweg.rank() + step, np.float32)
            talweg.push_pull_inplace(large, op=talweg.Op.SUM, name="large")
            total = talweg.synchronize(small)
            if not (total == size).all():
                print("WRONG small", flush=True)
                return 1
            if not (large == size * step + size * (size - 1) / 2).all():
                print("WRONG large", flush=True)
                return 1
            step += 1
            print(f"step {step} of rank {talweg.rank()}", flush=True)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3


if __name__ == "__main__":
    sys.exit(main())
