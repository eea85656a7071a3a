# SPDX-License-Identifier: Apache-2.0
"""A rank that counts who takes part in each round, until some rank is told to stop.

    until_told.py DIRECTORY

It waits for other ranks only in rounds of one tensor, so a node that comes back takes part from the
next round on. After each round a line "pid count" goes to DIRECTORY/RANK. A rank that finds
DIRECTORY/stop tells all others in its next round.
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
    talweg.enter()  # A joiner needs no State, because a round has all that it must know.
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
