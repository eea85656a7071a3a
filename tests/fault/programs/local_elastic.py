# SPDX-License-Identifier: Apache-2.0
"""Trains with local steps until it is told to stop, while nodes come and go.

    local_elastic.py STOP [--how NAME] [--ballast MB]

It prints "begins STEP: JOINED WHY" when begin() has returned, "step STEP of RANKS ranks global
DIGEST" after each step, with a digest of what all ranks must have alike, and "weights DIGEST" or
"error WHY" at the end. With `--ballast` so much more is trained. The file STOP ends all ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import talweg
import talweg.torch as tw
import torch
from torch import nn

_STREAMING: dict[str, Any] = {"fragments": 2, "delay": 2, "mix": 0.5}
_WAYS: dict[str, Any] = {
    "local_sgd": lambda model, inner: tw.LocalSGD(model, inner, 3, average_state=True),
    "diloco": lambda model, inner: tw.DiLoCo(model, inner, 3),
    "streaming": lambda model, inner: tw.DiLoCo(model, inner, 4, **_STREAMING),
}


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for each in tensors:
        digest.update(each.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def _shared(optimizer: Any) -> list[torch.Tensor]:
    """Returns x0 and the outer momentum of all parameters."""
    kept = optimizer.state_dict()["talweg_local"]["parameters"]
    return [each[key] for each in kept.values() for key in each if each[key] is not None]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("stop", type=Path)
    parser.add_argument("--how", choices=_WAYS, default="diloco")
    parser.add_argument("--ballast", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    talweg.init()
    # Each rank has other values until it has the state.
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    model.register_parameter("ballast", nn.Parameter(torch.zeros(arguments.ballast << 18)))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = _WAYS[arguments.how](model, inner)
    state = tw.Elastic(model, optimizer, step=0)
    state.check_every(1)
    state.begin()
    print(f"begins {state.step}: {state.joined} {state.took_whole}", flush=True)
    is_stopped = False
    while not is_stopped:
        generator = torch.Generator().manual_seed(1000 * state.step + talweg.rank())
        inputs = torch.randn(8, 20, generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
        (loss + model.ballast.sum() * inputs.mean()).backward()
        optimizer.step()
        state.step += 1
        own = np.array([arguments.stop.exists()], np.int32)
        is_stopped = bool(talweg.push_pull(own, op=talweg.Op.MAX, name="stop")[0])
        digest = "" if arguments.ballast else _digest(_shared(optimizer))
        try:
            state.end_step()
        except talweg.Mismatch as mismatch:
            print(f"error {mismatch}", flush=True)
            return 3
        print(f"step {state.step} of {talweg.size()} ranks global {digest}", flush=True)
    before = _digest(model.parameters())
    optimizer.flush()
    print(f"own {before}\nweights {_digest(model.parameters())}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
