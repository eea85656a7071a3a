# SPDX-License-Identifier: Apache-2.0
"""One rank of ddp_test.py: DistributedDataParallel with Talweg's hook against DDP with Gloo."""

from __future__ import annotations

import sys

import talweg.torch as tw
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(hook: bool) -> torch.Tensor:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.Linear(300, 5))
    model = DistributedDataParallel(inner, bucket_cap_mb=0.1)
    if hook:
        model.register_comm_hook(None, tw.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(10):
        torch.manual_seed(step * 10 + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in inner.parameters()])


def main() -> int:
    torch.set_num_threads(1)
    tw.init()
    dist.init_process_group("gloo")  # Finds its place in the variables that talweg run sets.
    assert (dist.get_rank(), dist.get_world_size()) == (tw.rank(), tw.size())
    ours, theirs = train(hook=True), train(hook=False)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), (ours - theirs).abs().max()
    everyone = tw.all_gather_object(ours.numpy().tobytes())
    assert all(other == everyone[0] for other in everyone)
    dist.destroy_process_group()
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
