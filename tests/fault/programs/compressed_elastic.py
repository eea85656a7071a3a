# SPDX-License-Identifier: Apache-2.0
"""Trains with compressed gradients until it is told to stop: compressed_elastic.py STOP.

Nodes may come and go. It prints "step STEP of RANKS ranks has DIGEST, COUNT" after each step, with the
number of the weight's gradients that are not 0, and "weights DIGEST" or "error WHY" at the end. The
file STOP ends all ranks.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import talweg
import talweg.torch as tw
import torch
from talweg.compression import RandomK
from torch import nn

_KEPT = 25


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for each in model.parameters():
        digest.update(each.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> int:
    stop = Path(sys.argv[1])
    torch.set_num_threads(1)
    talweg.init()
    # Each rank has other values until it has the state.
    model = nn.Sequential(nn.Linear(20, 64, bias=False), nn.Tanh(), nn.Linear(64, 2))
    weight = next(model.parameters())
    optimizer = tw.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-2),
        model.named_parameters(),
        compression=RandomK(_KEPT, seed=5, bytes_min=4096),
    )
    state = tw.Elastic(model, optimizer, step=0)
    state.check_every(1)
    state.begin()
    print(f"begins {state.step}", flush=True)
    is_stopped = False
    while not is_stopped:
        generator = torch.Generator().manual_seed(1000 * state.step + talweg.rank())
        inputs = torch.randn(8, 20, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long()).backward()
        assert weight.grad is not None
        count = int(weight.grad.count_nonzero())
        optimizer.step()
        state.step += 1
        own = np.array([stop.exists()], np.int32)
        is_stopped = bool(talweg.push_pull(own, op=talweg.Op.MAX, name="stop")[0])
        digest = _digest(model)
        try:
            state.end_step()
        except talweg.Mismatch as mismatch:
            print(f"error {mismatch}", flush=True)
            return 3
        print(f"step {state.step} of {talweg.size()} ranks has {digest}, {count}", flush=True)
    print(f"weights {_digest(model)}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
