# SPDX-License-Identifier: Apache-2.0
"""One rank of crossed_lines_test.py. Tensors i times (-1)^rank, for i = 1..99, must sum to zero."""

from __future__ import annotations

import random
import sys
import time

import numpy as np
import talweg


def main() -> int:
    rounds = int(sys.argv[1])
    delay_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    talweg.init()
    sign = (-1.0) ** talweg.rank()
    order = list(range(1, 100))
    rng = random.Random(talweg.rank())
    for _ in range(rounds):
        rng.shuffle(order)
        handles = {}
        for i in order:
            handles[i] = talweg.push_pull_async(
                np.full(17 * i, i * sign, np.float32), op=talweg.Op.SUM, name=f"tensor.{i}"
            )
            if delay_s and i % 10 == 0:
                time.sleep(rng.random() * delay_s)  # The bug needs this delay.
        for i, handle in handles.items():
            result = talweg.synchronize(handle, timeout_s=60)
            if result.any():
                print(f"CROSSED: tensor {i} at rank {talweg.rank()}: {result[:4]}", flush=True)
                return 1
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
