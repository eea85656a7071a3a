# SPDX-License-Identifier: Apache-2.0
"""A rank that prints what a program may ask about itself and about others.

    meets_joiner.py STOP

It prints "joiner BOOL" after init(). A joiner prints "refused CALL KIND: TEXT" for each call that
it may not make yet. Then come "begins BOOL WHY" after begin(), "step N epoch E sums R of SIZE
ranks" after each step, and "weights DIGEST" when the file STOP exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import talweg


def main() -> int:
    stop = Path(sys.argv[1])
    talweg.init()
    ones: np.ndarray = np.ones(10, np.float32)
    print(f"joiner {talweg.is_joiner()}", flush=True)
    calls: dict[str, Callable[[], Any]] = {
        "push_pull": lambda: talweg.push_pull(ones, name="early"),
        "broadcast": lambda: talweg.broadcast(ones, root_rank=0, name="early too"),
        "declare": lambda: talweg.declare("early as well", np.float32, 10),
        "broadcast_object": lambda: talweg.broadcast_object(7, root_rank=0),
        "end_step": talweg.end_step,
    }
    for what, call in calls.items() if talweg.is_joiner() else ():
        try:
            call()
            print(f"refused {what} not", flush=True)
        except Exception as error:
            print(f"refused {what} {type(error).__name__}: {error}", flush=True)
    # The State has no `apply` function, so a joiner takes it whole.
    state = talweg.State(weights=np.zeros(10, np.float32), step=0)
    state.begin()
    print(f"begins {talweg.is_joiner()} {state.took_whole}", flush=True)
    is_stopped = False
    while not is_stopped:
        told = np.array([stop.exists()], np.int32)
        handle = talweg.push_pull_async(told, op=talweg.Op.MAX, name="stop")
        is_stopped = bool(talweg.synchronize(handle)[0])
        state.weights += ones
        state.step += 1
        line = f"step {state.step} epoch {talweg.epoch()} sums {handle.ranks_summed}"
        size = talweg.size()
        state.end_step()
        print(f"{line} of {size} ranks", flush=True)
    print(f"weights {state.weights.sum()} {state.step}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
