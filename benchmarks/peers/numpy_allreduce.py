# SPDX-License-Identifier: Apache-2.0
"""One rank that sums NumPy arrays in place as ./bench orders (see control.h). Elements are f32."""

from __future__ import annotations

import sys

import numpy as np
import talweg
from control import Control, Order


def main() -> int:
    talweg.init()
    rank, size = talweg.rank(), talweg.size()
    arrays: dict[str, np.ndarray] = {}

    def run_round() -> None:
        for name, array in arrays.items():
            talweg.push_pull_inplace(array, name, talweg.Op.SUM)

    def prepare(order: Order) -> None:
        """Makes new arrays, and checks the result of one round."""
        arrays.clear()
        for index, nbytes in enumerate(order.sizes):
            count = nbytes // 4
            name = f"bench.{count}.{index}"
            arrays[name] = talweg.declare_in_place(name, np.float32, count, talweg.Op.SUM)
            arrays[name][:] = rank + 1
        run_round()
        for array in arrays.values():
            if (array != size * (size + 1) / 2).any():
                raise ValueError("a sum is wrong")
            array[:] = 0  # Repeated sums would soon overflow.

    Control(rank).serve(prepare, run_round)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
