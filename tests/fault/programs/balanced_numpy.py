# SPDX-License-Identifier: Apache-2.0
"""A rank that trains without a framework until batches have been in proportion to speed for a time.

    balanced_numpy.py SLOW_RANK

That rank takes longer for a sample. It prints "shares A,B,..." whenever ranks get other shares, and
"mean DISTANCE" with the largest distance of an average from the mean over the step's samples. The
last line is "weights DIGEST after N steps".
"""

from __future__ import annotations

import hashlib
import sys
import time

import numpy as np
import talweg

_SAMPLES = 2000
_SAMPLE_S = 0.001
_TIMES_SLOWER = 3
# A job whose shares never change ends after so many steps.
_STEPS_MAX = 3000
_STEPS_BALANCED = 100


def descend(state: talweg.State, gradient: np.ndarray) -> None:
    state.weights -= 0.05 * gradient


def main() -> int:
    slow = int(sys.argv[1])
    talweg.init()
    inputs = np.random.default_rng(2).normal(size=(_SAMPLES, 3))
    sampler = talweg.ElasticSampler(_SAMPLES, batch_size=8, balance=True)
    state = talweg.State(apply=descend, weights=np.zeros(3), sampler=sampler, step=0, balanced=0)
    state.begin()
    sample_s = _SAMPLE_S * (_TIMES_SLOWER if talweg.rank() == slow else 1)
    shares: list[int] = []
    off = 0.0
    is_over = False
    while not is_over:
        for batch in sampler:
            time.sleep(sample_s * len(batch))
            errors = inputs[batch] @ state.weights - 1
            gradients = 2 * errors[:, None] * inputs[batch]
            own = gradients.mean(0) if batch else np.zeros(3)
            handle = talweg.push_pull_async(own * sampler.weight, op=talweg.Op.AVERAGE, name="own")
            total = talweg.push_pull(gradients.sum(0), op=talweg.Op.SUM, name="of all samples")
            average = talweg.synchronize(handle)
            off = max(off, float(np.abs(average - total / sampler.step_samples).max()))
            state.apply(average)
            if sampler.shares != shares:
                shares = sampler.shares
                print(f"shares {','.join(map(str, shares))}", flush=True)
            state.balanced += 3 * shares[slow] <= 2 * max(shares)
            state.step += 1
            is_over = state.balanced == _STEPS_BALANCED or state.step == _STEPS_MAX
            state.end_step()
            if is_over:
                break
        sampler.set_epoch(sampler.epoch + 1)
    print(f"mean {off:.3g}", flush=True)
    digest = hashlib.sha256(state.weights.tobytes()).hexdigest()[:16]
    print(f"weights {digest} after {state.step} steps", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
