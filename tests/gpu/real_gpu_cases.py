# SPDX-License-Identifier: Apache-2.0
"""Cases of torch_rank.py for real GPUs."""

from __future__ import annotations

import copy
import os
import threading

import talweg
import talweg.torch as tw
import torch
import torch.distributed as dist
from expected_errors import expect
from rank_tensors import gpu, plain
from torch import nn


def real_order() -> None:
    """A contribution is what the stream leaves after a while."""
    stream = torch.cuda.Stream()
    for round_ in range(1, 4):
        with torch.cuda.stream(stream):
            tensor = torch.zeros(10_000_000, device="cuda")
            torch.cuda._sleep(200_000_000)
            tensor += tw.rank() + round_
            handle = tw.push_pull_async_inplace(tensor, average=False, name="late")
            result = tw.synchronize(handle) * 2
        stream.synchronize()
        wanted = tw.size() * (tw.size() - 1) + 2 * tw.size() * round_
        assert (plain(result) == wanted).all(), plain(result)


def real_reallocated() -> None:
    """Memory that torch has given back, and has got again."""
    for round_ in range(6):
        tensor = torch.full((12 << 20,), float(tw.rank() + round_), device="cuda")
        tw.push_pull_inplace(tensor, average=False, name="moving")
        wanted = tw.size() * round_ + tw.size() * (tw.size() - 1) / 2
        assert (plain(tensor) == wanted).all(), plain(tensor)
        del tensor
        torch.cuda.empty_cache()


def real_captured() -> None:
    """A push while a CUDA graph is captured is refused."""
    tensor = torch.ones(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = tensor * 2
        expect(
            talweg.InvalidArgument,
            "push outside of the graph",
            lambda: tw.push_pull_inplace(doubled, name="captured"),
        )
    graph.replay()
    tw.push_pull_inplace(doubled, name="captured")
    assert (plain(doubled) == 2).all(), plain(doubled)


def real_threads() -> None:
    """Pushes and takes by threads that have never touched the GPU."""
    failures = []

    def work(number: int) -> None:
        tensor = torch.full((5000,), float(number), device=f"cuda:{gpu.ordinal}")
        for _ in range(5):
            if not (plain(tw.push_pull(tensor, name=f"thread.{number}")) == number).all():
                failures.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures


def real_ddp() -> None:
    """DistributedDataParallel's buckets, averaged by Talweg."""
    store = os.environ["TALWEG_TEST_STORE"]
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=tw.rank(), world_size=tw.size()
    )
    torch.manual_seed(7)
    single = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3)).to(f"cuda:{gpu.ordinal}")
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(single), device_ids=[gpu.ordinal])
    model.register_comm_hook(None, tw.ddp_hook)
    for step in range(3):
        torch.manual_seed(100 * step + tw.rank())
        inputs = torch.randn(4, 6, device=f"cuda:{gpu.ordinal}")
        for each in (model, single):
            each.zero_grad()
            each(inputs).square().mean().backward()
        for parameter, reference in zip(model.parameters(), single.parameters()):
            wanted = tw.push_pull(plain(reference.grad), name=f"reference.{parameter.shape}")
            torch.testing.assert_close(plain(parameter.grad), wanted)
    dist.destroy_process_group()
