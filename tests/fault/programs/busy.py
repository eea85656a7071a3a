# SPDX-License-Identifier: Apache-2.0
"""A rank that always has so many tensors of so many bytes under way, and prints how often one came.

Arguments may also give the tensors' names.
"""

from __future__ import annotations

import sys

import numpy as np
import talweg


def main() -> int:
    count, size = (int(argument) for argument in sys.argv[1:3])
    names = sys.argv[3:] or [f"t{i}" for i in range(count)]
    talweg.init()
    arrays: list[np.ndarray] = [
        np.full(size // 4, talweg.rank() + i, np.float32) for i in range(count)
    ]
    for i, array in enumerate(arrays):  # All arrays get their memory before anything is counted.
        talweg.push_pull(array, op=talweg.Op.SUM, name=names[i])
    print("ready", flush=True)
    sys.stdin.readline()
    handles = [
        talweg.push_pull_async(array, op=talweg.Op.SUM, name=names[i])
        for i, array in enumerate(arrays)
    ]
    step = 0
    while True:
        for i, array in enumerate(arrays):
            total = talweg.synchronize(handles[i])
            if total[0] != talweg.size() * (talweg.size() - 1) / 2 + talweg.size() * i:
                print(f"WRONG t{i}", flush=True)
                return 1
            handles[i] = talweg.push_pull_async(array, op=talweg.Op.SUM, name=names[i])
            step += 1
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
