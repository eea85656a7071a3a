# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over Talweg. Each rank keeps a part of the parameters, and all learn together.

    talweg run --nodes 2 --ranks-per-node 2 -- python examples/fsdp.py

Each rank learns from its own part of a made-up data set. At the end rank 0 prints the loss, and
which part of the parameters it has kept.
"""

from __future__ import annotations

# Needed only if Talweg is not installed as a wheel. A wheel's entry point registers the backend.
import talweg.torch  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def main() -> None:
    dist.init_process_group("talweg")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (size,))

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 20, generator=generator)
    labels = (inputs[:, :5].sum(1) > 0).long()
    inputs, labels = inputs[rank::size], labels[rank::size]

    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    count = sum(parameter.numel() for parameter in model.parameters())
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)  # Its parameters are gathered only while it runs.
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    average = loss.detach().clone()
    dist.all_reduce(average, dist.ReduceOp.AVG)
    kept = sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor))
    if rank == 0:
        share = 100 * kept / count
        print(
            f"loss {average.item():.4f} on {size} ranks, each keeps {share:.0f} % of {count} parameters"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
