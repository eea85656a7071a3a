# SPDX-License-Identifier: Apache-2.0
"""A rank that counts who takes part in each round, until the first of all is told to stop.

    until_told.py DIRECTORY

It waits for no other rank but in rounds of one tensor, so that a node that comes back takes part from
the next one on. Lines go to DIRECTORY/RANK, "pid count" after each round; a rank that finds
DIRECTORY/stop says so to all others in its next round.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import talweg


def main() -> None:
    directory = Path(sys.argv[1])
    talweg.init()
    talweg.enter()  # A round holds all that there is to know.
    with (directory / str(talweg.rank())).open("a", buffering=1) as log:
        while True:
            own = np.array([1, (directory / "stop").exists()], np.int32)
            count, stops = talweg.push_pull(own, op=talweg.Op.SUM, name="ranks")
            log.write(f"{os.getpid()} {count}\n")
            if stops:
                break
            talweg.end_step()
    talweg.shutdown()


if __name__ == "__main__":
    main()
