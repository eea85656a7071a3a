# SPDX-License-Identifier: Apache-2.0
"""Checks that HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, or stall_ms, ends a job if ranks do not come.

horovod_stall.py late FILE      the last rank reduces when FILE tells that rank 0 has got its error
horovod_stall.py joined LIMIT   the last rank has joined, and nobody stalls in LIMIT seconds
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch


def late(told: Path) -> None:
    """The last rank is late for a small tensor, and for a large one that a node's ranks sum."""
    last = hvd.size() - 1
    for count in (1, 1 << 20):
        hvd.allreduce(torch.ones(count), name=f"met{count}")
    if hvd.rank() == last:
        while not told.exists():
            time.sleep(0.05)
    began = time.monotonic()
    try:
        hvd.allreduce(torch.ones(1 << 20), name="late")
    except hvd.HorovodInternalError as failure:
        text = str(failure)
    else:
        raise AssertionError("the job goes on")
    for part in ("tensor 'allreduce.late' has waited for rank", f"{last}", "longer than stall_ms"):
        assert part in text, text
    if hvd.rank() == 0:
        assert time.monotonic() - began > 0.9
        told.touch()
    print(f"rank {hvd.rank()} has heard of it")


def joined(limit_s: float) -> None:
    hvd.allreduce(torch.ones(3), name="x")
    hvd.allgather(torch.ones(3), name="y")
    if hvd.rank() != hvd.size() - 1:
        for round_ in range(2):
            # The rank computes for this long, and nothing must happen meanwhile.
            time.sleep(3 * limit_s)
            assert float(hvd.allreduce(torch.ones(1), name="x1", op=hvd.Sum)) == hvd.size() - 1
            assert float(hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum)[0]) == hvd.size() - 1
            print(f"round {round_}")
    hvd.join()


def main() -> None:
    hvd.init()
    if sys.argv[1] == "late":
        late(Path(sys.argv[2]))
    else:
        joined(float(sys.argv[2]))


if __name__ == "__main__":
    main()
