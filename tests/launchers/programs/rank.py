# SPDX-License-Identifier: Apache-2.0
"""A rank without torch, started by a launcher that knows nothing of Talweg.

rank.py sum            sums once, and prints its place
rank.py die RANK       RANK kills itself in the middle; the others print their errors
rank.py fail_once      rank 1 fails in the first of torchrun's lives
rank.py again          joins and leaves three times
rank.py hold FILE      goes on until FILE exists
rank.py late FILE      rank 1 joins when FILE exists; rank 0 makes it after a wait in vain
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import talweg

_INIT_S = 120.0
_VAIN_S = 2.0


def _sum() -> None:
    total = talweg.push_pull(np.full(4, talweg.rank(), np.float32), op=talweg.Op.SUM, name="x")
    size = talweg.size()
    assert (total == size * (size - 1) // 2).all(), total


def _say(text: str) -> None:
    # It is one write, so lines of several ranks do not mix.
    place = f"rank {talweg.rank()} of {talweg.size()}, local {talweg.local_rank()} of {talweg.local_size()}"
    os.write(1, f"{place}: {text}\n".encode())


def _wait_for_the_late(file: Path) -> None:
    if os.environ["RANK"] == "1":
        while not file.exists():
            time.sleep(0.05)
        return
    try:
        talweg.init(timeout_s=_VAIN_S)
    except talweg.Timeout as error:
        os.write(1, f"told: {error}\n".encode())
    file.touch()


def main() -> int:
    mode, *arguments = sys.argv[1:]
    if mode == "late":
        _wait_for_the_late(Path(arguments[0]))
    talweg.init(timeout_s=_INIT_S)
    _sum()
    if mode == "die":
        if talweg.rank() == int(arguments[0]):
            _sum()  # After it all others have the first sum, and wait for their error.
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                _sum()
        except talweg.TalwegError as error:
            os.write(1, f"told: {type(error).__name__}: {error}\n".encode())
            return 3
    if mode == "fail_once":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if talweg.rank() == 1:
                return 7
            while True:
                _sum()
    if mode == "die_once":
        lived = Path(f"{arguments[0]}.{talweg.rank()}")
        if not lived.exists():
            lived.touch()
            _sum()  # All ranks have taken part in a sum.
            if talweg.rank() == int(arguments[1]):
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # The launcher ends the other ranks.
    if mode == "again":
        for _ in range(2):
            talweg.shutdown()
            talweg.init(timeout_s=_INIT_S)
            _sum()
    if mode == "hold":
        _say("holds")
        while not Path(arguments[0]).exists():
            time.sleep(0.05)
            _sum()
        return 0
    talweg.barrier()
    _say("sum is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
