# SPDX-License-Identifier: Apache-2.0
"""A rank with local steps that differs from the other one: local_apart.py HOW.

Rank 0 "thaws" a parameter, "flushes" or "loads" its state, and rank 1 does not. The program prints "rank N",
then "error KIND: TEXT" of the error that follows, and waits for "leave" or for "go on". Then it
prints "left", or "goes on" if its job is well.
"""

from __future__ import annotations

import sys

import talweg
import talweg.torch as tw
import torch
from talweg import _client
from torch import nn


def main() -> int:
    how = sys.argv[1]
    torch.set_num_threads(1)
    talweg.init()
    print(f"rank {talweg.rank()}", flush=True)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].weight.requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    delay = 1 if how == "loads" else 0
    optimizer = tw.DiLoCo(model, inner, every=2, delay=delay, fragments=1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    try:
        for count in range(8):
            step()
            if talweg.rank() != 0 or count != 2:
                continue
            if how == "thaws":
                model[0].weight.requires_grad_(True)
            elif how == "flushes":
                optimizer.flush()
            else:
                optimizer.load_state_dict(optimizer.state_dict())
        optimizer.flush()
        print("error none", flush=True)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
    if sys.stdin.readline() == "leave\n":
        talweg.shutdown()
        print("left", flush=True)
        return 0
    try:
        _client.current().connection.check_health()
        print("goes on", flush=True)
    except talweg.TalwegError as error:
        print(f"goes not on: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
