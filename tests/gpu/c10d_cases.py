# SPDX-License-Identifier: Apache-2.0
"""Cases of torch_rank.py for torch.distributed's backend, on GPUs fake and real."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import talweg
import talweg.torch as tw
import torch
import torch.distributed as dist
from expected_errors import expect
from rank_tensors import assert_same, gpu, plain, sample

_groups = itertools.count()


def begin(backend: str = "talweg") -> None:
    """Makes the group of all ranks."""
    store = f"{os.environ['TALWEG_TEST_STORE']}.{next(_groups)}"
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=tw.rank(), world_size=tw.size()
    )


def _results(
    put: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor, parts: torch.Tensor
) -> dict[str, Any]:
    """Each call's outputs, of tensors where `put` brings them. `parts` is as long as all ranks'
    `values`.
    """
    rank, size, count = tw.rank(), tw.size(), values.numel()
    results: dict[str, Any] = {}

    def new(length: int) -> torch.Tensor:
        return put(torch.full((length,), -1.0))

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        tensor = put(values)
        dist.all_reduce(tensor, op)
        results[f"all_reduce {op}"] = [tensor]
    tensor = put(torch.arange(count))
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    results["all_reduce of integers"] = [tensor]
    tensor = put(torch.complex(values, values))
    dist.all_reduce(tensor)
    results["all_reduce of complex numbers"] = [tensor]
    tensor = put(parts.reshape(count, size)).t()
    dist.all_reduce(tensor)
    results["all_reduce of what lies in pieces"] = [tensor]
    tensors = [put(values), put(parts)]
    for work in [dist.all_reduce(each, async_op=True) for each in tensors]:
        work.wait()
    results["all_reduce, async"] = tensors
    tensor = put(values)
    dist.broadcast(tensor, size - 1)
    results["broadcast"] = [tensor]
    tensor = put(values)
    dist.reduce(tensor, 0)
    results["reduce"] = [tensor]
    outputs = [new(count) for _ in range(size)]
    dist.all_gather(outputs, put(values))
    results["all_gather"] = outputs
    tensor = new(count * size)
    dist.all_gather_into_tensor(tensor, put(values))
    results["all_gather_into_tensor"] = [tensor]
    tensor = new(count)
    dist.reduce_scatter_tensor(tensor, put(parts))
    results["reduce_scatter_tensor"] = [tensor]
    tensor = new(count)
    dist.reduce_scatter(tensor, [put(each) for each in parts.split(count)])
    results["reduce_scatter"] = [tensor]
    outputs = [new(count) for _ in range(size)] if rank == 0 else []
    dist.gather(put(values), outputs or None, 0)
    results["gather"] = outputs
    tensor = new(count)
    dist.scatter(tensor, [put(each) for each in parts.split(count)] if rank == 0 else None, 0)
    results["scatter"] = [tensor]
    tensor = new(count * size)
    dist.all_to_all_single(tensor, put(parts))
    results["all_to_all_single"] = [tensor]
    outputs = [new(count) for _ in range(size)]
    dist.all_to_all(outputs, [put(each) for each in parts.split(count)])
    results["all_to_all"] = outputs
    if size > 1 and rank < 2:
        for source in (1, None):
            tensor = new(count)
            if rank == 0:
                dist.recv(tensor, source)
            else:
                dist.send(put(values), 0)
            results[f"from {source}"] = [tensor]
    return results


def c10d_calls() -> None:
    """Each call has the result, to the last bit, that it has with tensors in host memory."""
    begin()
    for count in (1, 1000, 70_001):
        values = sample(torch.float32, count, 5)
        parts = sample(torch.float32, count * tw.size(), 6)
        of_cpu = _results(torch.clone, values, parts)
        of_gpu = _results(gpu.put, values, parts)
        assert of_cpu.keys() == of_gpu.keys()
        for call, wanted in of_cpu.items():
            assert len(of_gpu[call]) == len(wanted)
            for actual, each in zip(of_gpu[call], wanted):
                assert actual.is_cuda, call
                assert_same(actual, each)
    empty = gpu.put(torch.zeros(0))
    dist.all_reduce(empty)
    dist.all_gather_into_tensor(gpu.put(torch.zeros(0)), empty)
    dist.destroy_process_group()


def c10d_mixed() -> None:
    """Calls of tensors on GPUs and in host memory keep their order, and ranks may differ in where
    they have theirs.
    """
    begin()
    for round_ in range(6):
        values = torch.full((50_000,), float(tw.rank() + round_))
        on_gpu = (tw.rank() + round_) % 2 == 0
        tensors = [gpu.put(values) if on_gpu else values.clone(), values.clone(), gpu.put(values)]
        for work in reversed([dist.all_reduce(each, async_op=True) for each in tensors]):
            work.wait()
        for tensor in tensors:
            wanted = tw.size() * round_ + tw.size() * (tw.size() - 1) / 2
            assert (plain(tensor) == wanted).all(), plain(tensor)
    nowhere = torch.zeros(10, device="meta")
    expect(talweg.InvalidArgument, "tensor.cpu()", lambda: dist.all_reduce(nowhere))
    dist.destroy_process_group()


def c10d_mismatch() -> None:
    """Ranks whose tensors have other lengths are told so, and can go on."""
    begin()
    tensor = gpu.put(torch.ones(2000 + (tw.rank() == tw.size() - 1)))
    expect(talweg.Mismatch, "2001", lambda: dist.all_reduce(tensor))
    tensor = gpu.put(torch.ones(2000))
    dist.all_reduce(tensor)
    assert (plain(tensor) == tw.size()).all()
    dist.destroy_process_group()


# ----- Fake GPUs, whose streams can be held -----


def c10d_order() -> None:
    """What a call gives is what the stream leaves before it. Who waits is told what for."""
    begin()
    stream = gpu.new_stream()
    tensor = gpu.put(torch.zeros(10_000, dtype=torch.uint8))
    output = gpu.put(torch.zeros(10_000, dtype=torch.uint8))
    for round_ in range(1, 4):
        with gpu.on(stream):
            gpu.hold(stream, True)
            gpu.fill(tensor, round_)
            gpu.fill(output, 99)
            work = dist.all_reduce(tensor, async_op=True)
            after = torch.ones(5000)
            later = dist.all_reduce(after, async_op=True)  # Comes after it at every rank.
            source = dist.broadcast(output, 0, async_op=True)
            assert not work.is_completed() and not later.is_completed()
            expect(talweg.Timeout, "GPU", lambda work=work: work.wait(timedelta(milliseconds=20)))
            gpu.hold(stream, False)
            for each in (source, work, later):
                each.wait()
        assert (plain(tensor) == round_ * tw.size()).all(), plain(tensor)
        assert (plain(output) == 99).all(), plain(output)
        assert (after == tw.size()).all(), after
    dist.destroy_process_group()


def c10d_carried() -> None:
    """A call that nobody waits for goes on when its tensor is there."""
    begin()
    stream = gpu.new_stream()
    tensors = [gpu.put(torch.zeros(10_000, dtype=torch.uint8)) for _ in range(3)]
    done = threading.Semaphore(0)
    with gpu.on(stream):
        gpu.hold(stream, True)
        for byte, tensor in enumerate(tensors, 1):
            gpu.fill(tensor, byte)
            work = dist.all_reduce(tensor, async_op=True)
            work.call_when_done(done.release)
        gpu.hold(stream, False)
    for _ in tensors:
        assert done.acquire(timeout=60), "nobody carries the calls on"
    work.wait()
    dist.destroy_process_group()


def c10d_dropped() -> None:
    """Pinned memory that a copy is under way to is nobody else's, also when the call has ended."""
    begin()
    stream = gpu.new_stream()
    held = gpu.put(torch.zeros(10_000, dtype=torch.uint8))
    with gpu.on(stream):
        gpu.hold(stream, True)
        gpu.fill(held, 7)
        dist.all_reduce(held, async_op=True)
    dist.group.WORLD.abort()
    dist.destroy_process_group()
    begin("cpu:talweg,cuda:talweg")
    tensor = gpu.put(torch.ones(10_000, dtype=torch.uint8))
    work = dist.all_reduce(tensor, async_op=True)
    gpu.hold(stream, False)
    work.wait()
    assert (plain(tensor) == tw.size()).all(), plain(tensor)
    dist.destroy_process_group()
