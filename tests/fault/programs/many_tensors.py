# SPDX-License-Identifier: Apache-2.0
"""A rank that has many tensors, and pushes a small one round after round."""

from __future__ import annotations

import sys

import numpy as np
import talweg


def main() -> int:
    talweg.init()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    for start in range(0, count, 100):
        names = [f"layer.{i}.{'x' * 100}" for i in range(start, min(count, start + 100))]
        handles = [
            talweg.push_pull_async(np.ones(1, np.float32), op=talweg.Op.SUM, name=name)
            for name in names
        ]
        for handle in handles:
            talweg.synchronize(handle)
    step = 0
    try:
        while True:
            total = talweg.push_pull(np.ones(25_000, np.float32), op=talweg.Op.SUM, name="small")
            if not (total == talweg.size()).all():
                print("WRONG small", flush=True)
                return 1
            step += 1
            print(f"step {step} of rank {talweg.rank()}", flush=True)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3


if __name__ == "__main__":
    sys.exit(main())
