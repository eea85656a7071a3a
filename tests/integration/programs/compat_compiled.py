# SPDX-License-Identifier: Apache-2.0
"""One rank of byteps_test.py and horovod_test.py. It compiles whole steps by torch.compile.

They do the same as the plain steps, and torch warns of nothing in Talweg's functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import talweg.byteps.torch as bps
import talweg.horovod.torch as hvd
import torch
from cases import run_cases
from compiled_steps import check_compiled, sgd, small_model, step_over
from talweg.byteps.torch.cross_barrier import CrossBarrier
from talweg.byteps.torch.parallel import DistributedDataParallel
from torch import nn


def _with_optimizer(distribute: Callable[..., Any], _: str) -> Any:
    model = small_model()
    optimizer = distribute(sgd(model), named_parameters=model.named_parameters())
    return model, step_over(model, optimizer)


def _with_clipping(distribute: Callable[..., Any], _: str) -> Any:
    model = small_model()
    optimizer = distribute(sgd(model), named_parameters=model.named_parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        return loss

    return model, step


def horovods_optimizer() -> None:
    check_compiled(partial(_with_optimizer, hvd.DistributedOptimizer), "_before_step")


def horovods_optimizer_with_clipping() -> None:
    check_compiled(partial(_with_clipping, hvd.DistributedOptimizer))


def horovods_calls() -> None:
    """Calls are compiled with a gradient through one, in groups, and asynchronously."""

    def make(name: str) -> Any:
        model = small_model()
        optimizer = sgd(model)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = hvd.allreduce(model(x).square().mean(), name=f"loss.{name}") * hvd.size()
            loss.backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            hvd.allreduce_(gradients[0], name=f"first.{name}")
            handle = hvd.allreduce_async_(gradients[1], name=f"second.{name}")
            hvd.grouped_allreduce_(gradients[2:], name=f"others.{name}")
            hvd.synchronize(handle)
            optimizer.step()
            return hvd.allgather(loss.detach().reshape(1) + hvd.rank(), name=f"losses.{name}")

        return model, step

    check_compiled(make, "allreduce")


def horovods_batch_norm() -> None:
    def make(_: str) -> Any:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), hvd.SyncBatchNorm(16), nn.Linear(16, 1))
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())

        return model, step_over(model, optimizer)

    check_compiled(make)


def bytepss_optimizer() -> None:
    check_compiled(partial(_with_optimizer, bps.DistributedOptimizer), "_before_step")


def bytepss_optimizer_with_clipping() -> None:
    check_compiled(partial(_with_clipping, bps.DistributedOptimizer))


def bytepss_calls() -> None:
    def make(name: str) -> Any:
        model = small_model()
        optimizer = sgd(model)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = bps.push_pull(model(x).square().mean(), name=f"loss.{name}") * bps.size()
            loss.backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            handle = bps.push_pull_async_inplace(gradients[0], name=f"first.{name}")
            bps.push_pull_inplace(gradients[1], name=f"second.{name}")
            bps.synchronize(handle)
            optimizer.step()
            return loss.detach() + bps.rank()

        return model, step

    check_compiled(make, "push_pull")


def bytepss_data_parallel() -> None:
    """The module has buffers, which travel at every forward pass."""

    def make(_: str) -> Any:
        torch.manual_seed(1)
        model = DistributedDataParallel(
            nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
        )
        optimizer = sgd(model)

        return model, step_over(model, optimizer, before=model.synchronize)

    check_compiled(make)


def bytepss_cross_barrier() -> None:
    def make(_: str) -> Any:
        model = small_model()
        optimizer = CrossBarrier(model, sgd(model), model.named_parameters())

        return model, step_over(model, optimizer, after=optimizer.synchronize_parameters)

    check_compiled(make, "ForwardOverlap._before_forward")


_CASES = {
    "byteps": (
        bytepss_optimizer,
        bytepss_optimizer_with_clipping,
        bytepss_calls,
        bytepss_data_parallel,
        bytepss_cross_barrier,
    ),
    "horovod": (
        horovods_optimizer,
        horovods_optimizer_with_clipping,
        horovods_calls,
        horovods_batch_norm,
    ),
}


if __name__ == "__main__":
    {"byteps": bps, "horovod": hvd}[sys.argv[1]].init()
    run_cases(*_CASES[sys.argv[1]])
