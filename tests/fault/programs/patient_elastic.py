# SPDX-License-Identifier: Apache-2.0
"""Trains with patience until it is told to stop, while nodes come and go: patient_elastic.py STOP.

The last rank is late in every third step. It prints "begins STEP" when begin() has returned, "step
STEP of RANKS ranks has DIGEST, COUNT" after each step, and "weights DIGEST" or "error WHY" at the end.
The file STOP ends all ranks.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import numpy as np
import talweg
import talweg.torch as tw
import torch
from torch import nn

_PATIENCE_S = 0.005
_PAUSE_S = 0.05


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
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    inner = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    optimizer = tw.DistributedOptimizer(inner, model.named_parameters(), patience=_PATIENCE_S)
    state = tw.Elastic(model, optimizer, step=0)
    state.check_every(1)
    state.begin()
    print(f"begins {state.step}", flush=True)
    is_stopped = False
    while not is_stopped:
        if talweg.rank() == talweg.size() - 1 and state.step % 3 == 0:
            time.sleep(_PAUSE_S)
        generator = torch.Generator().manual_seed(1000 * state.step + talweg.rank())
        inputs = torch.randn(8, 20, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long()).backward()
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
        left_out = optimizer.left_out_count()
        print(f"step {state.step} of {talweg.size()} ranks has {digest}, {left_out}", flush=True)
    print(f"weights {_digest(model)}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
