# SPDX-License-Identifier: Apache-2.0
"""A rank that trains with scale="global_batch" until it is told to stop.

    global_batch.py STOP

It prints "begins FULL" with the samples of a full step. After each step it prints "step N of RANKS
ranks samples S rate R after A summed G off D". S are the samples of all ranks, R and A the learning
rate in the optimizer's step and after it, and G is the number of ranks in the gradients. D is the
distance of the weights from those of one process that takes all samples of the step with the weight
that they have in a full step. The last line is "weights DIGEST".
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import talweg
import talweg.torch
import torch

_RATE = 0.01
_BATCH = 4
_SAMPLES = 30


def main() -> int:
    stop = Path(sys.argv[1])
    torch.set_num_threads(1)
    talweg.init()
    inputs = torch.randn(_SAMPLES, 3, generator=torch.Generator().manual_seed(2)).double()
    model = torch.nn.Linear(3, 1, bias=False).double()
    weights = model.weight
    optimizer = talweg.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=_RATE), model.named_parameters()
    )
    sampler = talweg.ElasticSampler(_SAMPLES, batch_size=_BATCH)
    state = talweg.torch.Elastic(
        model, optimizer, scale="global_batch", sampler=sampler, epoch=0, step=0, stopped=False
    )
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))

    def step(indices: list[int]) -> str:
        optimizer.zero_grad()
        losses = (model(inputs[indices]) - 1).square()
        (losses.sum() / max(len(indices), 1) * state.weight).backward()
        errors = (inputs[indices] @ weights.detach().T - 1).numpy()
        own = (2 * errors * inputs[indices].numpy()).sum(0, keepdims=True)
        handle = talweg.push_pull_async(own, op=talweg.Op.SUM, name="gradients of all samples")
        expected = weights.detach().numpy() - _RATE / state.full_step * talweg.synchronize(handle)
        samples = sampler.step_samples
        optimizer.step()
        off = np.abs(weights.detach().numpy() - expected).max()
        return (
            f"samples {samples} rate {rates[-1] / _RATE:.6f} "
            f"after {optimizer.param_groups[0]['lr'] / _RATE:.6f} "
            f"summed {handle.ranks_summed} off {off:.3g}"
        )

    def train(state: Any) -> None:
        print(f"begins {state.full_step}", flush=True)
        while not state.stopped:
            for indices in sampler:
                line = step(indices)
                told = np.array([stop.exists()], np.int32)
                state.stopped |= bool(talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0])
                state.step += 1
                size = talweg.size()
                state.end_step()
                print(f"step {state.step} of {size} ranks {line}", flush=True)
            state.epoch += 1
            sampler.set_epoch(state.epoch)

    state.run(train)
    digest = hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest()[:16]
    print(f"weights {digest}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
