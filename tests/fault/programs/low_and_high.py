# SPDX-License-Identifier: Apache-2.0
"""Two ranks that push tensors of low priority, and then one of high priority, when told to.

The first rank pushes all at once, and prints how many others came before the last tensor.
"""

from __future__ import annotations

import sys

import numpy as np
import talweg


def main() -> int:
    count, low_bytes, high_bytes = (int(argument) for argument in sys.argv[1:])
    talweg.init()
    names = [f"low{i}" for i in range(count)]
    arrays: dict[str, np.ndarray] = {
        name: np.full(low_bytes // 4, i, np.float32) for i, name in enumerate(names)
    }
    arrays["high"] = np.full(high_bytes // 4, 99, np.float32)
    for name in arrays:  # All arrays get their memory before the link is slow.
        talweg.push_pull(np.zeros_like(arrays[name]), op=talweg.Op.SUM, name=name)
    print("ready", flush=True)
    sys.stdin.readline()
    handles = {
        name: talweg.push_pull_async(arrays[name], op=talweg.Op.SUM, name=name, priority=-1)
        for name in names
    }
    if talweg.rank() == 1:
        sys.stdin.readline()
    handles["high"] = talweg.push_pull_async(
        arrays["high"], op=talweg.Op.SUM, name="high", priority=1
    )
    high = talweg.synchronize(handles.pop("high"))
    before = sum(talweg.poll(handle) for handle in handles.values())
    print(f"high after {before}", flush=True)
    assert (high == 2 * arrays["high"]).all()
    for name, handle in handles.items():
        assert (talweg.synchronize(handle) == 2 * arrays[name]).all(), name
    print("all are right", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
