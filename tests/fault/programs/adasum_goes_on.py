# SPDX-License-Identifier: Apache-2.0
"""One rank of lost_members_test.py: training with Adasum goes on after the loss of a rank.

adasum_goes_on.py VICTIM SECONDS: that rank dies so long after it has begun its eleventh step. With
0 it dies before it takes part in that step, so the others are in the middle of theirs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import talweg.horovod.torch as hvd
import torch

_DIES_IN, _STEPS = 10, 30


def check_averages() -> None:
    """Averages of integers divide by the ranks that are there."""
    six = torch.tensor([6])
    whole = hvd.allreduce(six, name="whole"), hvd.allreduce(six, name="twice", postscale_factor=2.0)
    if whole != (6, 12):
        # See below why this is no exception.
        print(f"averages of integers are wrong: {whole}", flush=True)
        os._exit(1)


def main() -> int:
    victim, delay_s = int(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    hvd.init()
    check_averages()
    is_victim = hvd.rank() == victim
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 100)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    def make_step() -> None:
        generator = torch.Generator().manual_seed(1000 * state.step + hvd.rank())
        optimizer.zero_grad()
        model(torch.randn(4, 300, generator=generator)).square().mean().backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        try:
            optimizer.step()
        except hvd.HorovodInternalError:
            if not all(map(torch.equal, before, model.parameters())):
                # hvd.elastic.run would take an error that follows the loss for the loss itself.
                print("the loss has left a part of a step", flush=True)
                os._exit(1)
            if delay_s == 0:  # All ranks that are left come here.
                check_averages()
            raise

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < _STEPS:
            if is_victim and state.step == _DIES_IN and delay_s == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if is_victim and state.step == _DIES_IN:
                threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
            make_step()
            state.step += 1
            state.commit()

    train(state)
    every = hvd.allgather(model.weight.detach().reshape(1, -1))
    assert all(torch.equal(each, every[0]) for each in every)
    hvd.shutdown()
    print(f"rank has ended well after {state.step} steps", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
