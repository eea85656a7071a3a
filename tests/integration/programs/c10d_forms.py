# SPDX-License-Identifier: Apache-2.0
"""Checks that what few programs use of torch.distributed is the same over Gloo and Talweg.

    c10d_forms.py [inductor]

With `inductor`, compares a program that torch.compile has made C++ of, which needs a compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from c10d_groups import each_backend
from c10d_models import sgd_of, weights_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def _model(width: int = 40) -> nn.Sequential:
    torch.manual_seed(1)
    middle = nn.Linear(width, width)
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), middle, nn.ReLU(), nn.Linear(width, 3))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for step in range(3):
        generator = torch.Generator().manual_seed(100 * step + rank)
        inputs = torch.randn(8, 12, generator=generator)
        labels = torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def first_fully_sharded(rank: int, size: int) -> Any:
    """FSDP1 on CPUs, with each way to shard, and its whole state at every rank."""
    from torch.distributed import fsdp

    found = []
    for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        model = fsdp.FullyShardedDataParallel(
            _model(),
            sharding_strategy=getattr(fsdp.ShardingStrategy, name),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        _train(model, sgd_of(model), rank)
        norm = model.clip_grad_norm_(1.0)
        with fsdp.FullyShardedDataParallel.summon_full_params(model):
            found += [*weights_of(model), norm]
    return found


def delayed_gradients(rank: int, size: int) -> Any:
    """DDP reduces the last layers' gradients when it has the first layer's.

    torch waits for that call with no backend. So Gloo may end it after the step, and trains here
    without the delay.
    """
    network = _model(300)
    options = {}
    if dist.get_backend() == "talweg":
        parameters = network.named_parameters()
        options = {
            "delay_all_reduce_named_params": [each for each in parameters if each[0][0] != "0"],
            "param_to_hook_all_reduce": network[0].weight,
        }
    model = DistributedDataParallel(network, **options)
    _train(model, sgd_of(model), rank)
    return weights_of(model)


def groups_made_by_their_members(rank: int, size: int) -> Any:
    """The ranks of a group alone make it, each pair in its own time."""
    own = [rank - rank % 2, rank - rank % 2 + 1]
    found = []
    if own[1] < size:
        group = dist.new_group(own, use_local_synchronization=True)
        for _ in range(2):
            tensor = torch.full([5], float(rank))
            dist.all_reduce(tensor, group=group)
            found.append(tensor)
        dist.destroy_process_group(group)
    dist.barrier()
    return found


def partial_tensors(rank: int, size: int) -> Any:
    """A DTensor that each rank has a part of is combined in each way that torch knows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (size,))
    generator = torch.Generator().manual_seed(rank)
    own = torch.randn(5, 7, generator=generator)
    found = []
    for op in ("sum", "avg", "max", "min", "product"):
        for placement in (Replicate(), Shard(0), Shard(1)):
            partial = DTensor.from_local(own, mesh, [Partial(op)])
            found.append(partial.redistribute(mesh, [placement]).full_tensor())
    return found


def compiled_by_inductor(rank: int, size: int) -> Any:
    import torch.distributed._functional_collectives as functional

    def call(tensor: torch.Tensor) -> Any:
        group = dist.group.WORLD
        summed = functional.all_reduce(tensor * 2 + 1, "sum", group)
        every = functional.all_gather_tensor(summed.sin() + rank, 0, group)
        own = functional.reduce_scatter_tensor(every * 3, "sum", 0, group)
        return summed + 1, every, own.cos()

    torch._dynamo.reset()
    traced = torch.compile(call, fullgraph=True, backend="inductor")
    found = []
    for turn in range(2):
        tensor = torch.arange(6.0) + rank + turn
        got = [each.clone() for each in traced(tensor)]
        for one, other in zip(got, call(tensor)):
            torch.testing.assert_close(one, other)
        found.append(got)
    return found


def main() -> None:
    runs: tuple[Callable[[int, int], Any], ...] = (
        first_fully_sharded,
        delayed_gradients,
        groups_made_by_their_members,
        partial_tensors,
    )
    if sys.argv[1:] == ["inductor"]:
        runs = (compiled_by_inductor,)
    each_backend({run.__name__: run for run in runs}, tolerance=1e-5)


if __name__ == "__main__":
    main()
