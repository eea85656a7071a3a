# SPDX-License-Identifier: Apache-2.0
"""A rank that trains with batches in proportion to speed until it is told to stop.

    balanced.py STOP [--slow NODE]

The ranks of that node take longer for a sample. It prints "begins STEP: JOINED WHY". After each step
it prints "step N of RANKS ranks shares A,B epoch E took I,J,...", where A and B are what each rank
gets, and I and J the samples that this rank took. The last lines are "model W,W,W" and
"weights DIGEST".
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

import numpy as np
import talweg
import talweg.torch
import torch
from torch.utils.data import TensorDataset

_SAMPLES = 960
_BATCH = 16
_RATE = 0.05
_SAMPLE_S = 0.001
_TIMES_SLOWER = 3


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("stop", type=Path)
    parser.add_argument("--slow", type=int, default=-1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    talweg.init()
    inputs = torch.randn(_SAMPLES, 3, generator=torch.Generator().manual_seed(2)).double()
    model = torch.nn.Linear(3, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = talweg.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=_RATE), model.named_parameters()
    )
    sampler = talweg.ElasticSampler(_SAMPLES, batch_size=_BATCH, balance=True)
    loader = talweg.torch.ElasticLoader(TensorDataset(torch.arange(_SAMPLES), inputs), sampler)
    state = talweg.torch.Elastic(
        model, optimizer, sampler=sampler, epoch=0, step=0, is_stopped=False
    )

    def sample_s() -> float:
        [node] = [each.node for each in talweg.members() if talweg.rank() in each.ranks]
        return _SAMPLE_S * (_TIMES_SLOWER if node == arguments.slow else 1)

    def train(state: talweg.torch.Elastic) -> None:
        print(f"begins {state.step}: {state.joined} {state.took_whole}", flush=True)
        while not state.is_stopped:
            for numbers, batch in loader:
                time.sleep(sample_s() * sampler.own_samples)
                optimizer.zero_grad()
                (((model(batch) - 1) ** 2).mean() * state.weight).backward()
                optimizer.step()
                told = np.array([arguments.stop.exists()], np.int32)
                state.is_stopped |= bool(talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0])
                state.step += 1
                taken = numbers.tolist() if sampler.own_samples else []
                line = (
                    f"of {talweg.size()} ranks shares {','.join(map(str, sampler.shares))} "
                    f"epoch {state.epoch} took {','.join(map(str, taken))}"
                )
                step = state.step
                state.end_step()
                print(f"step {step} {line}", flush=True)
                if state.is_stopped:
                    return
            state.epoch += 1
            sampler.set_epoch(state.epoch)

    state.run(train)
    weights = model.weight.detach().numpy().reshape(-1)
    print(f"model {','.join(map(repr, weights.tolist()))}", flush=True)
    print(f"weights {hashlib.sha256(weights.tobytes()).hexdigest()[:16]}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
