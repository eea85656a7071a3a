# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over Talweg. Only the name of the backend differs from other programs.

    talweg run --nodes 2 --ranks-per-node 2 -- python examples/ddp.py

Each rank learns from its own part of a made-up data set. At the end rank 0 prints the loss, and all
ranks have the same weights.
"""

from __future__ import annotations

# Needed only if Talweg is not installed as a wheel. A wheel's entry point registers the backend.
import talweg.torch  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("talweg")
    rank, size = dist.get_rank(), dist.get_world_size()

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 20, generator=generator)
    labels = (inputs[:, :5].sum(1) > 0).long()
    inputs, labels = inputs[rank::size], labels[rank::size]

    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    average = loss.detach().clone()
    dist.all_reduce(average, dist.ReduceOp.AVG)
    weights = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    every = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(every, weights)
    alike = all(torch.equal(weights, other) for other in every)
    if rank == 0:
        print(f"loss {average.item():.4f} on {size} ranks, weights alike: {alike}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
