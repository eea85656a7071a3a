# SPDX-License-Identifier: Apache-2.0
"""Trains with patience, and thaws a parameter: patient_thaws.py WHO WHEN.

WHO is "all", or the rank that thaws it, after WHEN steps (0: it is never frozen there). That rank
is late then, so that rounds go on without it. The program prints "step N of rank R" after each step,
and "error KIND: TEXT" where one raises; then it lives until its standard input ends.
"""

from __future__ import annotations

import sys
import time

import talweg
import talweg.torch as tw
import torch
from torch import nn

_PATIENCE_S = 0.01
_PAUSE_S = 0.2


def main() -> int:
    who, when = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    talweg.init()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    thaws = who == "all" or talweg.rank() == int(who)
    model[0].weight.requires_grad_(thaws and when == 0)
    tw.broadcast_parameters(model.state_dict(), root_rank=0)
    inner = torch.optim.SGD(model.parameters(), lr=1e-2)
    optimizer = tw.DistributedOptimizer(inner, model.named_parameters(), patience=_PATIENCE_S)
    try:
        for step in range(60):
            if thaws and step == when:
                model[0].weight.requires_grad_(True)
                time.sleep(_PAUSE_S)
            generator = torch.Generator().manual_seed(1000 * step + talweg.rank())
            inputs = torch.randn(8, 20, generator=generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long()).backward()
            optimizer.step()
            print(f"step {step} of rank {talweg.rank()}", flush=True)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
