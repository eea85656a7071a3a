# SPDX-License-Identifier: Apache-2.0
"""One rank of failures_test.py: pushes until that fails, says how, and ends with status 0."""

from __future__ import annotations

import sys

import numpy as np
import talweg


def main() -> int:
    talweg.init()
    array: np.ndarray = np.ones(300_000, np.float32)
    rounds = 0
    try:
        while True:
            talweg.push_pull(array, op=talweg.Op.SUM, name="w")
            rounds += 1
            if rounds == 5:
                print("running", flush=True)
    except talweg.errors.TalwegError as error:
        print(f"failed {type(error).__name__}: {error}", flush=True)
        return 0


if __name__ == "__main__":
    sys.exit(main())
