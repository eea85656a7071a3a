# SPDX-License-Identifier: Apache-2.0
"""A program of Horovod for PyTorch that trains by hvd.elastic until it is told to stop.

    hvd_elastic_torch.py DIRECTORY [FACTOR]

FACTOR is gradient_predivide_factor. The default is 1.

If DIRECTORY/kill.PID exists for a process, it kills the process that the file names during its next
backward pass, when some gradients have left and others have not.

Lines go to DIRECTORY/PID:

    begins BATCH     the function of run() is called
    step BATCH       a commit has been made
    reset SIZE       the ranks have changed
    stale            a step begins with a gradient of another step
    changed          a gradient that was kept over the loss of the agent has other values
    epoch EPOCH      a step begins in another epoch of the job
    weights DIGEST   the last line
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import talweg
import torch

# A step takes so much longer, without using the CPUs.
_PAUSE_S = 0.005


def main() -> None:
    directory = Path(sys.argv[1])
    log = (directory / str(os.getpid())).open("w", buffering=1)
    hvd.init()
    torch.manual_seed(hvd.rank())  # begin() makes the weights equal.
    # The first layer's gradient is large enough to be summed in shared memory.
    model = torch.nn.Sequential(torch.nn.Linear(20, 2000), torch.nn.Linear(2000, 1))
    orders = directory / f"kill.{os.getpid()}"

    def in_backward(*_: Any) -> None:
        if orders.exists():
            os.kill(int(orders.read_text()), signal.SIGKILL)
            orders.unlink()

    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0001 * hvd.size(), momentum=0.9),
        model.named_parameters(),
        gradient_predivide_factor=float(sys.argv[2]) if len(sys.argv) > 2 else 1.0,
    )

    def on_reset() -> None:
        """Sets the learning rate for the number of ranks, as Horovod's guide does."""
        for group in optimizer.param_groups:
            group["lr"] = 0.0001 * hvd.size()
        there = int(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="reset"))
        assert there == hvd.size(), (there, hvd.size())
        log.write(f"reset {hvd.size()}\n")

    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    epochs = [talweg.epoch()]

    @hvd.elastic.run
    def train(state: Any) -> None:
        log.write(f"begins {state.batch}\n")
        for gradient, copy in kept:
            if not torch.equal(gradient, copy):
                log.write("changed\n")
        # A rank that comes later has made fewer of these, and must have the same names for them.
        layers = torch.nn.Sequential(hvd.SyncBatchNorm(20), torch.nn.Linear(20, 1))
        of_this_call = hvd.DistributedOptimizer(
            torch.optim.SGD(layers.parameters(), lr=0.0001), layers.named_parameters()
        )
        while not state.stopped:
            if epochs[-1] != talweg.epoch():
                epochs.append(talweg.epoch())
                log.write(f"epoch {epochs[-1]}\n")
            generator = torch.Generator().manual_seed(1000 * hvd.rank() + state.batch)
            inputs = torch.randn(8, 20, generator=generator)
            of_this_call.zero_grad()
            layers(inputs).square().mean().backward()
            of_this_call.step()
            hidden = model[0](inputs)
            hidden.register_hook(in_backward)
            noise = torch.randn(8, 1, generator=generator)  # It keeps gradients from vanishing.
            loss = (model[1](hidden) - inputs.sum(1, keepdim=True) - noise).square().mean()
            if any(parameter.grad is not None for parameter in model.parameters()):
                log.write("stale\n")
            loss.backward()
            optimizer.step()
            gradient = model[0].weight.grad
            kept[:] = [*kept[-3:], (gradient, gradient.clone())]
            optimizer.zero_grad()  # Only after the step, so a lost step leaves gradients.
            time.sleep(_PAUSE_S)
            told = torch.tensor([int((directory / "stop").exists())])
            state.stopped = bool(hvd.allreduce(told, op=hvd.Max, name="stop"))
            state.batch += 1
            state.commit()
            log.write(f"step {state.batch}\n")

    state = hvd.elastic.TorchState(model, optimizer, batch=0, stopped=False)
    state.register_reset_callbacks([on_reset])
    train(state)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    assert weights.isfinite().all(), "the training has diverged: ranks that differ look alike"
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]
    log.write(f"weights {digest}\n")
    hvd.shutdown()


if __name__ == "__main__":
    main()
