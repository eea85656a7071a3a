# SPDX-License-Identifier: Apache-2.0
"""One rank of ddp_test.py: DistributedDataParallel with Talweg's hook against DDP with Gloo."""

from __future__ import annotations

import itertools
import sys
from typing import Any
from unittest import mock

import talweg.torch as tw
import torch
import torch.distributed as dist
from talweg.torch import _ddp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# How DDP is told to work. Over a static graph the first pass has its buckets reduced when it has
# ended; a bucket of which no parameter was used is reduced before backward begins.
_MANNERS: tuple[dict[str, bool], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
)


class _Model(nn.Module):
    """Three layers, the second of which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 300)
        self.second = nn.Linear(300, 300)
        self.third = nn.Linear(300, 5)

    def forward(self, x: torch.Tensor, whole: bool) -> torch.Tensor:
        x = torch.relu(self.first(x))
        if whole:
            x = torch.relu(self.second(x))
        return self.third(x)


def train(hook: bool, name: str, manner: dict[str, bool]) -> torch.Tensor:
    torch.manual_seed(0)
    inner = _Model()
    model = DistributedDataParallel(inner, bucket_cap_mb=0.1, **manner)
    if hook:
        model.register_comm_hook(name, tw.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(10):
        torch.manual_seed(step * 10 + dist.get_rank())
        optimizer.zero_grad()
        whole = step % 2 == 0 or "find_unused_parameters" not in manner
        model(torch.randn(8, 20), whole).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in inner.parameters()])


def check(name: str, manner: dict[str, bool]) -> None:
    ours, theirs = train(True, name, manner), train(False, name, manner)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), (name, (ours - theirs).abs().max())
    everyone = tw.all_gather_object(ours.numpy().tobytes())
    assert all(other == everyone[0] for other in everyone), name


class _Bucket:
    """What the hook needs of DDP's."""

    def __init__(self) -> None:
        self._tensor = torch.full((4,), float(tw.rank()))

    def buffer(self) -> torch.Tensor:
        return self._tensor

    def index(self) -> int:
        return 0


def check_after_failed_backward() -> None:
    """A bucket that was pushed before backward failed is in nobody's way afterwards."""
    futures: list[torch.futures.Future[torch.Tensor]] = []
    for fails in (True, False):
        weight = nn.Parameter(torch.ones(4))
        bucket: Any = _Bucket()

        def hook(_: torch.Tensor, bucket: Any = bucket, fails: bool = fails) -> None:
            futures.append(tw.ddp_hook("failed", bucket))
            if fails:
                raise ArithmeticError("on purpose")

        weight.register_post_accumulate_grad_hook(hook)
        try:
            weight.sum().backward()
            assert not fails
        except ArithmeticError:
            assert fails
    for future in futures:
        assert torch.equal(future.wait(), torch.full((4,), (tw.size() - 1) / 2)), future.wait()


def main() -> int:
    torch.set_num_threads(1)
    tw.init()
    dist.init_process_group("gloo")  # Finds its place in the variables that talweg run sets.
    assert (dist.get_rank(), dist.get_world_size()) == (tw.rank(), tw.size())
    for number, (manner, left) in enumerate(itertools.product(_MANNERS, (False, True))):
        with (
            mock.patch.object(_ddp, "_completer", None),
            mock.patch.object(_ddp, "cpus_are_left", lambda client, left=left: left),
        ):
            check(f"model{number}", manner)
            if not left:
                check_after_failed_backward()
    dist.destroy_process_group()
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
