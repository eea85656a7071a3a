# SPDX-License-Identifier: Apache-2.0
"""Trains with torch in ways that keep gradients under way. See outliver.py.

The ways are `overlap` (DistributedOptimizer(overlap_forward=...)), `hook` (DistributedDataParallel
with Talweg's hook), `c10d` (DistributedDataParallel over the backend) and `diloco` (DiLoCo whose
fragments are under way between steps).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import talweg
import talweg.torch as tw
import torch
import torch.distributed as dist
from outliver import Program, main
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """A model whose first layer's gradient is large enough to be summed in shared memory."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program
        self.first = nn.Linear(20, 2000)
        self.second = nn.Linear(2000, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        # When this hook runs, the second layer's gradients have left.
        hidden.register_hook(lambda _: self._program.kill_if_told())
        return self.second(hidden)


def check_that_it_is_old() -> None:
    """Checks that a group refuses calls when ranks' numbers or this rank's agent have changed."""
    try:
        dist.all_reduce(torch.zeros(1))
    except (talweg.AgentLost, talweg.InvalidArgument):
        return
    raise AssertionError("a group of other numbers can be used")


def join_group(backend: str, rank: int, size: int) -> None:
    if dist.is_initialized():
        if dist.get_backend() == "talweg":
            check_that_it_is_old()
        dist.destroy_process_group()
    dist.init_process_group(backend, store=dist.HashStore(), rank=rank, world_size=size)


def train(program: Program, way: str) -> None:
    torch.manual_seed(talweg.rank())  # begin() makes the weights equal.
    model = Model(program)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0002, momentum=0.9)
    wrapped: nn.Module = model
    if way == "overlap":
        named = model.named_parameters()
        optimizer = tw.DistributedOptimizer(optimizer, named, overlap_forward=model)
    elif way == "diloco":
        optimizer = tw.DiLoCo(model, optimizer, 4, fragments=2, delay=2, mix=0.5)
    elif way == "hook":
        # The group has only this rank, so a lost rank does not affect it. The hook sums over the
        # job.
        join_group("gloo", 0, 1)
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.05)
        wrapped.register_comm_hook(None, tw.ddp_hook)

    def prepare() -> Callable[[int], None]:
        nonlocal wrapped
        if way == "c10d":
            join_group("talweg", talweg.rank(), talweg.size())
            wrapped = DistributedDataParallel(model, bucket_cap_mb=0.05)
        return make_step

    def make_step(number: int) -> None:
        if way == "overlap":
            assert not optimizer._talweg_overlap.is_open  # end_step() has made all updates.
        generator = torch.Generator().manual_seed(1000 * talweg.rank() + number)
        inputs = torch.randn(8, 20, generator=generator)
        optimizer.zero_grad()
        loss = (wrapped(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()

    def weights() -> Iterator[np.ndarray]:
        if way == "diloco":
            optimizer.flush()
        for parameter in model.parameters():
            yield parameter.detach().numpy()

    program.run(way, tw.Elastic(model, optimizer, step=0, stopped=False), prepare, weights)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(train)
