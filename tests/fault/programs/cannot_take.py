# SPDX-License-Identifier: Apache-2.0
"""A rank whose State has a value that refuses what it is given, if the rank is told so.

    cannot_take.py STOP [RANK | joined]

The value refuses it at rank RANK, or at this rank with "joined". The program prints "step N of SIZE
ranks" after each step, until the file STOP exists. If begin() raises, it prints "error KIND: TEXT"
and stays alive until its standard input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import talweg


class Value:
    def __init__(self, refuses: bool) -> None:
        self._refuses = refuses

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self._refuses:
            raise LookupError("it has no room")


def main() -> int:
    stop = Path(sys.argv[1])
    talweg.init()
    told = sys.argv[2] if len(sys.argv) > 2 else "nowhere"
    refuses = talweg.is_joiner() if told == "joined" else str(talweg.rank()) == told
    state = talweg.State(value=Value(refuses), weights=np.zeros(10, np.float32), step=0)
    try:
        state.begin()
    except Exception as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        sys.stdin.read()
        return 3
    is_stopped = False
    while not is_stopped:
        told_stop = np.array([stop.exists()], np.int32)
        is_stopped = bool(talweg.push_pull(told_stop, op=talweg.Op.MAX, name="stop")[0])
        state.step += 1
        size = talweg.size()
        state.end_step()
        print(f"step {state.step} of {size} ranks", flush=True)
    print(f"weights {state.weights.sum()} {state.step}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
