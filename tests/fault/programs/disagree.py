# SPDX-License-Identifier: Apache-2.0
"""Two ranks use one name for tensors of different lengths, and both get an error."""

from __future__ import annotations

import sys

import numpy as np
import talweg


def main() -> int:
    talweg.init()
    count = 100 if talweg.rank() == 0 else 200
    try:
        talweg.push_pull(np.ones(count, np.float32), op=talweg.Op.SUM, name="disputed")
    except talweg.Mismatch as error:
        print(f"error Mismatch: {error}", flush=True)
        talweg.shutdown()
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
