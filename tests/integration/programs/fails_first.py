# SPDX-License-Identifier: Apache-2.0
"""Rank 0 raises an exception. Rank 1 fails because of it, and rank 0 ends after rank 1.

With a number as an argument rank 0 calls sys.exit() with it instead.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

_others: list[int] = []


@atexit.register  # It is registered before talweg's function, so it is called after that.
def end_late() -> None:
    while any(os.path.exists(f"/proc/{pid}") for pid in _others):
        time.sleep(0.01)


def main() -> None:
    import talweg

    talweg.init()
    pids = talweg.all_gather_object(os.getpid())
    if talweg.rank() == 0:
        _others.append(pids[1])
        if len(sys.argv) > 1:
            sys.exit(int(sys.argv[1]))
        raise ValueError("this is the first")
    talweg.barrier()


if __name__ == "__main__":
    main()
