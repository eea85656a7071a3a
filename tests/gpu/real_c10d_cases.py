# SPDX-License-Identifier: Apache-2.0
"""Cases of torch_rank.py: torch's own ways to train, over the backend "talweg", on real GPUs."""

from __future__ import annotations

import os
from typing import Any

import talweg
import talweg.torch as tw
import torch
import torch.distributed as dist
from c10d_cases import begin
from expected_errors import expect
from rank_tensors import gpu, plain
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

_STEPS = 4


def _model() -> nn.Module:
    torch.manual_seed(7)
    layers = [nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 8)]
    return nn.Sequential(*layers).to(f"cuda:{gpu.ordinal}")


def _inputs(step: int, rank: int) -> torch.Tensor:
    torch.manual_seed(100 * step + rank)
    return torch.randn(16, 64).to(f"cuda:{gpu.ordinal}")


def _train(model: nn.Module, ranks: list[int]) -> None:
    """On the batches of these ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(_STEPS):
        optimizer.zero_grad()
        batch = torch.cat([_inputs(step, rank) for rank in ranks])
        model(batch).square().mean().backward()
        optimizer.step()


def _reference() -> list[torch.Tensor]:
    """The weights of one process that has the batches of all ranks."""
    model = _model()
    _train(model, list(range(tw.size())))
    return [plain(parameter) for parameter in model.parameters()]


def _check(parameters: Any, wanted: list[torch.Tensor]) -> None:
    """They are those of one process, and the same at every rank to the last bit."""
    for actual, reference in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(plain(actual), reference, rtol=1e-4, atol=1e-5)
        own = plain(actual)
        every = tw.all_gather(own[None])
        assert all(torch.equal(each, own) for each in every), "ranks have other weights"


def real_c10d_ddp() -> None:
    """DistributedDataParallel over the backend."""
    wanted = _reference()
    begin()
    model = nn.parallel.DistributedDataParallel(_model(), device_ids=[gpu.ordinal], bucket_cap_mb=1)
    _train(model, [tw.rank()])
    _check(model.parameters(), wanted)
    dist.destroy_process_group()


def _full(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.full_tensor() for parameter in model.parameters()]


def _shard(model: nn.Module, mesh: Any) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def real_c10d_fsdp() -> None:
    """FSDP2: gathers and reduce-scatters over the backend."""
    wanted = _reference()
    begin()
    model = _shard(_model(), init_device_mesh("cuda", (tw.size(),)))
    _train(model, [tw.rank()])
    _check(_full(model), wanted)
    dist.destroy_process_group()


def real_c10d_futures() -> None:
    """What is chained to a call finds its result."""
    begin()
    tensor = torch.ones(1 << 20, device=f"cuda:{gpu.ordinal}")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    assert (plain(doubled) == 2 * tw.size()).all(), plain(doubled)
    dist.destroy_process_group()


def real_c10d_streams() -> None:
    """A call takes what its own stream leaves, and another stream finds the result."""
    begin()
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    for round_ in range(1, 4):
        with torch.cuda.stream(stream):
            tensor = torch.zeros(10_000_000, device="cuda")
            torch.cuda._sleep(200_000_000)
            tensor += tw.rank() + round_
            work = dist.all_reduce(tensor, async_op=True)
        with torch.cuda.stream(other):
            work.wait()
            result = tensor * 2
        other.synchronize()
        wanted = tw.size() * (tw.size() - 1) + 2 * tw.size() * round_
        assert (plain(result) == wanted).all(), plain(result)
    dist.destroy_process_group()


def real_c10d_captured() -> None:
    """A call while a CUDA graph is captured is refused."""
    begin()
    tensor = torch.ones(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = tensor * 2
        expect(talweg.InvalidArgument, "outside of the graph", lambda: dist.all_reduce(doubled))
    graph.replay()
    dist.all_reduce(doubled)
    assert (plain(doubled) == 2 * tw.size()).all(), plain(doubled)
    dist.destroy_process_group()


def _let_ranks_share_a_gpu() -> None:
    """NCCL takes ranks of one GPU for ranks of several hosts, between which it uses sockets."""
    os.environ.update(NCCL_HOSTID=f"host{tw.rank()}", NCCL_SOCKET_IFNAME="lo")


def real_c10d_beside_nccl() -> None:
    """Talweg has the tensors in host memory, and NCCL those on GPUs."""
    wanted = _reference()
    _let_ranks_share_a_gpu()
    begin("cpu:talweg,cuda:nccl")
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    assert isinstance(backend, dist.ProcessGroupNCCL), backend
    for device in ("cpu", f"cuda:{gpu.ordinal}"):
        tensor = torch.full((1000,), tw.rank() + 1.0, device=device)
        dist.all_reduce(tensor)
        assert (plain(tensor) == tw.size() * (tw.size() + 1) / 2).all(), tensor
    model = nn.parallel.DistributedDataParallel(_model(), device_ids=[gpu.ordinal])
    _train(model, [tw.rank()])
    _check(model.parameters(), wanted)
    every: list[Any] = [None] * tw.size()
    dist.all_gather_object(every, tw.rank())
    assert every == list(range(tw.size()))
    dist.barrier()
    dist.destroy_process_group()


def real_c10d_hsdp() -> None:
    """NCCL has the dimension of the shards, Talweg that of the replicas."""
    wanted = _reference()
    _let_ranks_share_a_gpu()
    begin("cpu:talweg,cuda:nccl")
    mesh = init_device_mesh(
        "cuda",
        (tw.size() // 2, 2),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": "talweg", "shard": "nccl"},
    )
    replicas, shards = mesh.get_group("replicate"), mesh.get_group("shard")
    cuda = torch.device("cuda")
    assert isinstance(shards._get_backend(cuda), dist.ProcessGroupNCCL)
    assert replicas._get_backend(cuda) is replicas, "the replicas are not Talweg's"
    model = _shard(_model(), mesh)
    _train(model, [tw.rank()])
    _check(_full(model), wanted)
    dist.destroy_process_group()


def real_c10d_beside_gloo() -> None:
    """The weights of DDP are those that Gloo comes to, but for rounding."""
    results = []
    for backend in ("talweg", "gloo"):
        begin(backend)
        model = nn.parallel.DistributedDataParallel(_model(), device_ids=[gpu.ordinal])
        _train(model, [tw.rank()])
        results.append([plain(parameter) for parameter in model.parameters()])
        dist.destroy_process_group()
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
