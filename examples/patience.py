# SPDX-License-Identifier: Apache-2.0
"""Measures what patience is worth where ranks pause now and then.

    talweg run --nodes 4 -- python examples/patience.py

Every rank sleeps for each step, and now and then as long again. So ranks do not share CPUs, however
many there are on this machine. Ranks make the same steps, with the same pauses, once waiting for all
ranks and once with patience, in turns. Rank 0 prints how long a step of both takes, and how long it
takes the rank with the most pauses if it waits for nobody.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median

import numpy as np
import talweg

_COUNT = 250_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--pause-ms", type=float, default=40.0)
    parser.add_argument("--pauses", type=float, default=0.15, help="a step")
    parser.add_argument("--patience-ms", type=float, default=2.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="in a turn")
    arguments = parser.parse_args()

    talweg.init()
    gradient: np.ndarray = np.zeros(_COUNT, np.float32)
    talweg.declare("patient", np.float32, _COUNT, patience=arguments.patience_ms / 1000)
    names = {"waiting for all": "strict", "with patience": "patient"}
    for name in names.values():
        talweg.push_pull(gradient, name)

    def sleeps_s(turn: int) -> list[float]:
        """How long this rank sleeps in each step of a turn."""
        dice = random.Random(f"{talweg.rank()}.{turn}")
        pauses = (dice.random() < arguments.pauses for _ in range(arguments.steps))
        return [(arguments.step_ms + arguments.pause_ms * each) / 1000 for each in pauses]

    def turn_ms(turn: int, name: str) -> float:
        """Makes the turn's steps. Returns the time of one."""
        talweg.barrier()
        begun = time.monotonic()
        for sleep_s in sleeps_s(turn):
            time.sleep(sleep_s)
            talweg.push_pull(gradient, name)
        talweg.barrier()
        return 1000 * (time.monotonic() - begun) / arguments.steps

    times: dict[str, list[float]] = {title: [] for title in names}
    for turn in range(arguments.turns):
        for title, name in names.items():
            times[title].append(turn_ms(turn, name))
    own = np.array([1000 * sum(sleeps_s(turn)) for turn in range(arguments.turns)])
    least = talweg.push_pull(own / arguments.steps, "own", talweg.Op.MAX)
    if talweg.rank() == 0:
        for title, each in times.items():
            print(
                f"{title}: {median(each):.1f} ms a step ({min(each):.1f} to {max(each):.1f} in "
                f"{arguments.turns} turns)",
                flush=True,
            )
        print(f"the least: {median(least):.1f} ms", flush=True)
    talweg.shutdown()


if __name__ == "__main__":
    main()
