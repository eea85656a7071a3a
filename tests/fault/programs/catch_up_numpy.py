# SPDX-License-Identifier: Apache-2.0
"""Does the same as catch_up.py without a framework. The State has an `apply` function.

    catch_up_numpy.py STOP [--frozen MB] [--touch STEP] [--no-hook]

It prints the lines of catch_up.py. From the step of `--touch` on, each step also changes weights
without the function. With `--no-hook` the State has no such function.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import talweg


class ToldState(talweg.State):
    """A State that prints a line when it is given to others."""

    def replay(self) -> Any:
        replay: Any = super().replay()
        if replay is not None:
            snapshot = replay.snapshot

            def tell() -> Any:
                print("gives", flush=True)
                return snapshot()

            replay.snapshot = tell
        return replay


def descend(state: talweg.State, gradient: np.ndarray) -> None:
    state.momentum *= np.float32(0.9)
    state.momentum += gradient * np.float32(state.rate)
    state.weights -= state.momentum


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("stop", type=Path)
    parser.add_argument("--frozen", type=int, default=0)
    parser.add_argument("--touch", type=int, default=0)
    parser.add_argument("--no-hook", action="store_true")
    arguments = parser.parse_args()
    talweg.init()
    draw = np.random.default_rng()  # Each rank has other values until it has the state.
    state = ToldState(
        apply=None if arguments.no_hook else descend,
        weights=draw.random(5000, np.float32),
        momentum=np.zeros(5000, np.float32),
        frozen=draw.random(arguments.frozen << 18, np.float32),
        rate=0.1,
        step=0,
    )
    state.begin()
    print(f"begins {state.step}: {state.joined} {state.took_whole}", flush=True)
    is_stopped = False
    while not is_stopped:
        own = np.random.default_rng(1000 * state.step + talweg.rank()).random(5000, np.float32)
        gradient = talweg.push_pull(own - np.float32(0.5), op=talweg.Op.AVERAGE, name="gradient")
        if arguments.no_hook:
            descend(state, gradient)
        else:
            state.apply(gradient)
        if 0 < arguments.touch <= state.step:
            state.weights *= np.float32(0.999)
        state.rate *= 0.9999
        state.step += 1
        told = np.array([arguments.stop.exists()], np.int32)
        is_stopped = bool(talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0])
        state.end_step()
        beside = "".join(f" beside {each.node}" for each in talweg.members() if each.standby)
        print(f"step {state.step} of {talweg.size()} ranks{beside}", flush=True)
    digest = hashlib.sha256()
    for array in (state.weights, state.momentum, state.frozen):
        digest.update(array.data)
    digest.update(f"{state.rate} {state.step}".encode())
    print(f"weights {digest.hexdigest()[:16]}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
