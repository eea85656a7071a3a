# SPDX-License-Identifier: Apache-2.0
"""Trains with torch until it is told to stop. A node that joins catches up beside the steps.

    catch_up.py STOP [--optimizer NAME] [--frozen MB] [--trained MB] [--touch STEP]
                [--strays] [--begins-when FILE] [--dies-in PHASE] [--stops-in PHASE]
                [--fails-in PHASE]

It prints these lines:

    begins STEP: JOINED WHY     begin() has returned
    step STEP of RANKS ranks    a step has ended; with "beside NODE" while that node is a standby
    gives                       the state of this rank is copied for a standby
    stops                       the process is about to stop
    copies N of M               the end of the step has copied so many bytes of the state
    digests                     the parameters are hashed while others wait
    weights DIGEST, error WHY   the last line

With `--frozen` so much of the model is not trained, so the state is large and a step's gradients
are small. With `--trained` so much more is trained. From the step of `--touch` on, each step also
changes parameters without the optimizer. With `--strays` a joiner's first step changes a weight so.
With `--begins-when` the program calls begin() when that file exists. In the given phase, in which
its state is asked for or taken over, the process kills itself (`--dies-in`), stops until SIGCONT
(`--stops-in`), or raises an error at the second rank of its node (`--fails-in`). The file STOP ends
all ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import talweg
import talweg.torch
import torch
from talweg._elastic import stripes
from torch import nn

_OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=2),
}


_PHASES = ("problem", "snapshot", "rest", "load", "apply", "load_rest")


class MortalState(talweg.torch.Elastic):
    """A State that ends, stops or fails its process in the given phase."""

    told: argparse.Namespace
    has_stopped = False

    def digest(self) -> int:
        print("digests", flush=True)
        return super().digest()

    def replay(self) -> Any:
        told = MortalState.told
        replay: Any = super().replay()
        calls = {phase: getattr(replay, phase) for phase in _PHASES}

        def die(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def stop(*given: Any) -> Any:
            if not MortalState.has_stopped:
                MortalState.has_stopped = True
                print("stops", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            return calls[told.stops_in](*given)

        def fail(*_: Any) -> str:
            if told.fails_in == "problem":
                return "told to fail"
            raise RuntimeError("told to fail")

        def tell() -> Any:
            print("gives", flush=True)
            return calls["snapshot"]()

        replay.snapshot = tell
        if told.dies_in is not None:
            setattr(replay, told.dies_in, die)
        if told.stops_in is not None:
            setattr(replay, told.stops_in, stop)
        if told.fails_in is not None and talweg.local_rank() == 1:
            setattr(replay, told.fails_in, fail)
        return replay


class ToldCopying(stripes.Copying):
    """A Copying that prints how much is copied before the thread begins."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        left = sum(target.size for target, _ in self._left)
        print(f"copies {self.stripe.size - left} of {self.stripe.size}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("stop", type=Path)
    parser.add_argument("--optimizer", choices=_OPTIMIZERS, default="adam")
    parser.add_argument("--frozen", type=int, default=0)
    parser.add_argument("--trained", type=int, default=0)
    parser.add_argument("--touch", type=int, default=0)
    parser.add_argument("--strays", action="store_true")
    parser.add_argument("--begins-when", type=Path)
    for way in ("dies", "stops", "fails"):
        parser.add_argument(f"--{way}-in", choices=_PHASES)
    arguments = parser.parse_args()
    MortalState.told = arguments
    stripes.Copying = ToldCopying  # type: ignore[assignment,misc]
    torch.set_num_threads(1)
    talweg.init()
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    # Each rank has other values until it has the state.
    frozen, trained = torch.rand(arguments.frozen << 18), torch.rand(arguments.trained << 18)
    model.register_parameter("frozen", nn.Parameter(frozen, requires_grad=False))
    model.register_parameter("trained", nn.Parameter(trained))
    optimizer = talweg.torch.DistributedOptimizer(
        _OPTIMIZERS[arguments.optimizer](p for p in model.parameters() if p.requires_grad)
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    state = MortalState(model, optimizer, scheduler=scheduler, step=0)
    while arguments.begins_when is not None and not arguments.begins_when.exists():
        time.sleep(0.005)
    state.begin()
    print(f"begins {state.step}: {state.joined} {state.took_whole}", flush=True)
    is_stopped, strays = False, arguments.strays and state.joined
    while not is_stopped:
        generator = torch.Generator().manual_seed(1000 * state.step + talweg.rank())
        inputs = torch.randn(8, 20, generator=generator)

        def loss(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            value = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
            value = value + model.trained.sum() * inputs.mean()
            value.backward()
            return value

        if arguments.optimizer == "lbfgs":
            optimizer.step(loss)
        else:
            loss()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        if 0 < arguments.touch <= state.step:
            with torch.no_grad():
                model[0].weight.mul_(0.999)
        if strays:
            strays = False
            with torch.no_grad():
                model.frozen[-1] += 1
        scheduler.step()
        state.step += 1
        own = np.array([arguments.stop.exists()], np.int32)
        is_stopped = bool(talweg.push_pull(own, op=talweg.Op.MAX, name="stop")[0])
        try:
            state.end_step()
        except talweg.Mismatch as mismatch:
            print(f"error {mismatch}", flush=True)
            return 3
        beside = "".join(f" beside {each.node}" for each in talweg.members() if each.standby)
        print(f"step {state.step} of {talweg.size()} ranks{beside}", flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(f"weights {digest.hexdigest()[:16]}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
