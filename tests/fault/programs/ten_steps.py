# SPDX-License-Identifier: Apache-2.0
"""Makes ten rounds. Then it prints its place by Talweg's calls and by torchrun's variables."""

from __future__ import annotations

import os
import sys

import numpy as np
import talweg


def main() -> int:
    talweg.init()
    rank, size = talweg.rank(), talweg.size()
    told = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]))
    if told != (rank, size, talweg.local_rank()):
        print(f"the variables say {told}", flush=True)
        return 1
    for step in range(10):
        total = talweg.push_pull(np.full(1000, step + rank, np.int64), "x", talweg.Op.SUM)
        if not (total == size * step + size * (size - 1) // 2).all():
            return 1
    local = f"local {talweg.local_rank()} of {talweg.local_size()}"
    print(f"rank {rank} of {size}, {local}: done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
