# SPDX-License-Identifier: Apache-2.0
"""One rank that three times leaves its job and joins another one, as a notebook's cells do.

    init_again.py DIRECTORY

The last rank leaves each job when the first one is about to join the next job. So the first ranks
come back before their agents have ended. A job that the rank has left keeps no memory of its.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import numpy as np
import talweg

_DEADLINE_S = 100.0
_MEMORY = "/memfd:talweg"


def _await(path: Path) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.005)


def _mapped() -> list[str]:
    """Returns what this process has mapped of memory that it shares with its agent."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if _MEMORY in line]


def main() -> None:
    directory = Path(sys.argv[1])
    for number in range(3):
        talweg.init()
        rank, size = talweg.rank(), talweg.size()
        # In another job a name may mean another tensor.
        own: np.ndarray = np.full(4 + number, rank + 1, np.float32)
        total = talweg.push_pull(own, op=talweg.Op.SUM, name="x")
        assert (total == size * (size + 1) / 2).all(), total
        talweg.barrier()
        assert _mapped()
        if rank == 0:
            (directory / str(number)).touch()
        if rank == size - 1:
            _await(directory / str(number))
        talweg.shutdown()
        gc.collect()
        assert not _mapped(), _mapped()
    print("done", flush=True)


if __name__ == "__main__":
    main()
