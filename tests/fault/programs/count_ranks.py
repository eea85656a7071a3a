# SPDX-License-Identifier: Apache-2.0
"""A rank that counts who takes part in each round.

    count_ranks.py ROUNDS VICTIM ROUND

The rank VICTIM kills itself before it pushes ROUND.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import talweg


def main() -> None:
    rounds, victim, last = map(int, sys.argv[1:])
    talweg.init()
    for number in range(1, rounds + 1):
        if talweg.rank() == victim and number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        count = talweg.push_pull(np.ones(1000, np.int32), op=talweg.Op.SUM, name="ranks")
        print(f"round {number}: {count.min()} to {count.max()}", flush=True)
    talweg.shutdown()


if __name__ == "__main__":
    main()
