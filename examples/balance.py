# SPDX-License-Identifier: Apache-2.0
"""Measures what batches in proportion to speed are worth where one rank is slower than the others.

    talweg run --nodes 2 -- python examples/balance.py --slower 2

Every rank sleeps for each sample, the last rank so many times longer. So ranks do not share CPUs,
however many there are on this machine. Ranks train with equal batches and with batches in proportion
to speed, in turns. Rank 0 prints the median step of both, and how long the samples of a step take if
nothing else does and each rank could take a part of one.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
import talweg

_DIMENSIONS = 1000
# The first steps show each rank's speed.
_FIRST_STEPS = 60


def descend(state: talweg.State, gradient: np.ndarray) -> None:
    state.weights -= 0.01 * gradient


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slower", type=float, default=2.0, help="times, the last rank")
    parser.add_argument("--sample-ms", type=float, default=1.0, help="of the other ranks")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50, help="in a turn")
    arguments = parser.parse_args()

    talweg.init()
    count = (_FIRST_STEPS + arguments.turns * arguments.steps) * arguments.batch_size
    inputs = np.random.default_rng(1).random((count * talweg.size(), 1), np.float32)
    equal = talweg.ElasticSampler(inputs, arguments.batch_size)
    balanced = talweg.ElasticSampler(inputs, arguments.batch_size, balance=True)
    state = talweg.State(
        apply=descend, weights=np.zeros(_DIMENSIONS, np.float32), equal=equal, balanced=balanced
    )
    state.begin()
    is_slow = talweg.rank() == talweg.size() - 1
    sample_s = arguments.sample_ms / 1000 * (arguments.slower if is_slow else 1)

    def step_s(sampler: talweg.ElasticSampler) -> float:
        """Makes a step with the sampler's next batch. Returns its time."""
        begun = time.monotonic()
        batch = next(iter(sampler))
        time.sleep(sample_s * len(batch))
        mean = (inputs[batch] - state.weights).mean(0) if batch else np.zeros_like(state.weights)
        state.apply(talweg.push_pull(-mean * np.float32(sampler.weight), name="gradient"))
        state.end_step()
        return time.monotonic() - begun

    times: dict[str, list[list[float]]] = {"equal batches": [], "in proportion": []}
    for sampler in (equal, balanced):
        for _ in range(_FIRST_STEPS):
            step_s(sampler)
    for _ in range(arguments.turns):
        for turns, sampler in zip(times.values(), (equal, balanced)):
            turns.append([step_s(sampler) for _ in range(arguments.steps)])

    speeds = talweg.size() - 1 + 1 / arguments.slower
    least_ms = arguments.batch_size * talweg.size() * arguments.sample_ms / speeds
    if talweg.rank() == 0:
        for (title, turns), sampler in zip(times.items(), (equal, balanced)):
            medians = sorted(1000 * median(turn) for turn in turns)
            middle = 1000 * median(each for turn in turns for each in turn)
            print(
                f"{title}: {middle:.1f} ms a step ({medians[0]:.1f} to {medians[-1]:.1f} in "
                f"{arguments.turns} turns), {middle / least_ms:.3f} of the least, batches of "
                f"{sampler.shares}",
                flush=True,
            )
        print(f"the least: {least_ms:.1f} ms", flush=True)
    talweg.shutdown()


if __name__ == "__main__":
    main()
