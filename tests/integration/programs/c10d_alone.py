# SPDX-License-Identifier: Apache-2.0
"""Checks features of Talweg's groups that Gloo lacks or has in another way."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import talweg
import talweg.torch
import torch
import torch.distributed as dist
from expected_errors import expect
from talweg import _client
from talweg._collectives import sparse_rows, sparse_sums
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import ProfilerActivity, profile

# It ends a wait that hangs.
_DEADLINE_S = 120.0
_RANK, _SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def check_groups_in_a_world_of_gloo() -> None:
    """The first group of Talweg joins the job, if the program has not."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (1, _SIZE), backend_override={0: "talweg", 1: "talweg"})
    group = mesh.get_group(1)
    assert dist.get_backend() == "gloo" and dist.get_backend(group) == "talweg"
    for each in (group, dist.new_group(backend="talweg"), dist.group.WORLD):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=each)
        assert tensor.tolist() == [_SIZE] * 3
    dist.destroy_process_group()


def check_devices_that_are_named() -> None:
    """A program names device_id, on a machine that seems to have a GPU."""
    gpu, other = torch.device("cuda", 0), torch.device("xpu", 0)
    has_one = mock.patch.object(torch.accelerator, "device_count", lambda: 1)

    def seems(device: torch.device) -> Any:
        return mock.patch.object(torch.accelerator, "current_accelerator", lambda: device)

    with seems(other), has_one:
        expect(
            talweg.InvalidArgument,
            'name one, as in "cpu:talweg,xpu:gloo"',
            dist.init_process_group,
            "talweg",
            device_id=other,
            # It is refused before ranks talk. A store of rank 0's would end with rank 0's call,
            # while others connect to it.
            store=dist.HashStore(),
            rank=_RANK,
            world_size=_SIZE,
        )
    with seems(gpu), has_one:
        dist.init_process_group("cpu:talweg,cuda:gloo", device_id=gpu)
    group = dist.group.WORLD
    assert group._device_types == [torch.device("cpu"), torch.device("cuda")]
    assert isinstance(group._get_backend(gpu), dist.ProcessGroupGloo)
    assert group._get_backend(torch.device("cpu")) is group
    every = [None] * _SIZE
    dist.all_gather_object(every, _RANK)  # It uses host memory, although a GPU was named.
    assert every == list(range(_SIZE))
    dist.barrier()
    dist.destroy_process_group()


def _late() -> tuple[list[int], str]:
    """Returns ranks that call nothing for a while, and a pattern of the text about them.

    They are on other nodes, if there are any.
    """
    here = talweg.local_size()
    if here == _SIZE:
        late = list(range(1, _SIZE))
        each = r"rank {0} \(local rank {0} of node 0, pid \d+\)"
        return late, ", ".join(each.format(rank) for rank in late)
    nodes = [range(first, first + here) for first in range(here, _SIZE, here)]
    words = [
        f"rank{'s' if here > 1 else ''} {', '.join(map(str, ranks))} of node {node}"
        for node, ranks in enumerate(nodes, 1)
    ]
    return list(range(here, _SIZE)), ", ".join(words)


def check_late_ranks() -> None:
    """The error names all missing ranks, whatever the call is."""
    group = dist.new_group()
    late, words = _late()
    mine = torch.ones(3)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce of float32[3]": lambda: dist.all_reduce(mine, group=group, async_op=True),
        "all_reduce of float32[100000]": lambda: dist.all_reduce(
            torch.ones(100_000), group=group, async_op=True
        ),
        "broadcast of float32[3000]": lambda: dist.broadcast(
            torch.ones(3000), _SIZE - 1, group=group, async_op=True
        ),
        "all_gather_into_tensor of float32[3]": lambda: dist.all_gather_into_tensor(
            torch.zeros(3 * _SIZE), mine, group=group, async_op=True
        ),
        "reduce_scatter_tensor of": lambda: dist.reduce_scatter_tensor(
            torch.ones(3000), torch.ones(3000 * _SIZE), group=group, async_op=True
        ),
        "all_to_all_single of": lambda: dist.all_to_all_single(
            torch.ones(_SIZE), torch.ones(_SIZE), group=group, async_op=True
        ),
        "barrier: ": lambda: dist.barrier(group, async_op=True),
    }
    for name, call in calls.items():
        if _RANK not in late:
            work, said = call(), ""
            end = time.monotonic() + _DEADLINE_S
            # Nodes learn of other nodes' ranks after a second.
            while not re.search(f"it still waits for {words}$", said):
                assert time.monotonic() < end, f"no {words!r} in: {said}"
                try:
                    work.wait(timedelta(seconds=0.1))
                except talweg.Timeout as error:
                    said = str(error)
            assert said.startswith(f"rank {_RANK}: {name}"), said
        talweg.barrier()
        if _RANK in late:
            work = call()
        work.wait()
        assert work.is_success()


def check_time_limits() -> None:
    """The group's own call sets a time limit, and torch's does from torch 2.14 on."""
    group = dist.new_group(timeout=timedelta(seconds=77))
    short = timedelta(seconds=0.05)
    if hasattr(dist, "set_timeout"):
        dist.set_timeout(short, group)
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dist.distributed_c10d._set_pg_timeout(short, group)
        texts = [str(each.message) for each in caught]
        assert any("only supported for either nccl or gloo" in text for text in texts)
        assert group._timeout == timedelta(seconds=77)
        group.set_timeout(short)
    if _RANK == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        expect(talweg.Timeout, "timeout after 0.05 s", work.wait)
    talweg.barrier()
    if _RANK > 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    work.wait(timedelta(seconds=_DEADLINE_S))


def check_what_a_work_says() -> None:
    """A work tells of a call that has failed, and has results that Gloo's works lack."""
    work = dist.all_reduce(torch.ones(3 + (_RANK == 1)), async_op=True)
    expect(talweg.Mismatch, "rank 0 calls all_reduce sum of f32[3], but rank 1", work.wait)
    assert work.is_completed() and not work.is_success()
    assert isinstance(work.exception(), talweg.Mismatch)
    expect(talweg.Mismatch, "rank 0 calls all_reduce sum of f32[3], but rank 1", work.result)
    part, parts = torch.zeros(3), [torch.ones(3) for _ in range(_SIZE)]
    after, before = (_RANK + 1) % _SIZE, (_RANK - 1) % _SIZE
    works = [
        dist.reduce_scatter(part, parts, async_op=True),
        dist.reduce_scatter_tensor(part, torch.ones(3 * _SIZE), async_op=True),
        dist.irecv(part, before),
        dist.isend(torch.ones(3), after),
    ]
    for work in works:
        work.wait()
        assert work.exception() is None
        assert [each.shape for each in work.result()] == [part.shape], work.result()
        [value] = work.get_future().wait()
        assert value.shape == part.shape
    # The same holds for small calls that the group knows.
    opts = dist.distributed_c10d.AllgatherOptions()
    opts.asyncOp = False
    every = torch.zeros(_SIZE)
    for _ in range(3):
        work = dist.group.WORLD.all_gather_single(every, torch.ones(1), opts)
        work.wait()
        [value] = work.result()
        assert value is every and value.tolist() == [1] * _SIZE


def check_groups_one_after_another() -> None:
    """A group takes the tensors of an earlier group of its ranks, which is over at all of them."""
    client = _client.current()
    counts = []
    for _ in range(8):
        for ranks in (list(range(_SIZE)), [0, _SIZE - 1]):
            group = dist.new_group(ranks)
            if _RANK not in ranks:
                continue
            for length in (3, 100_000):
                tensor = torch.ones(length)
                dist.all_reduce(tensor, group=group)
                assert (tensor == len(ranks)).all()
            if _RANK == 0:
                dist.send(tensor, _SIZE - 1, group, tag=3)
            elif _RANK == _SIZE - 1:
                dist.recv(tensor, 0, group, tag=3)
            dist.destroy_process_group(group)
            expect(talweg.InvalidArgument, "is destroyed: make another", group.barrier)
        counts.append(client.tensor_count)
    # The second group has one more tensor, by which the ranks agree.
    assert counts[2:] == [counts[1]] * (len(counts) - 2), counts
    # A rank has begun a call of a group and destroyed it, while the others still have the group.
    first = dist.new_group()
    if _RANK == 0:
        work = dist.all_reduce(torch.ones(3), group=first, async_op=True)
        dist.destroy_process_group(first)
        assert not first._lane.is_free()
    second = dist.new_group()
    tensor = torch.full((3,), 2.0)
    dist.all_reduce(tensor, group=second)
    assert tensor.tolist() == [2 * _SIZE] * 3
    assert second._lane is not first._lane
    if _RANK > 0:
        work = dist.all_reduce(torch.ones(3), group=first, async_op=True)
        dist.destroy_process_group(first)
    work.wait()
    third = dist.new_group()
    assert third._lane is first._lane
    dist.all_reduce(tensor, group=third)
    assert tensor.tolist() == [2 * _SIZE**2] * 3
    for group in (second, third):
        dist.destroy_process_group(group)


def _shown_of(work: Callable[[], Any]) -> list[Any]:
    """Returns Talweg's ranges that torch's profiler shows of `work`."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    return [event for event in profiler.events() if event.name.startswith("talweg:")]


def check_what_a_profiler_shows() -> None:
    """The profiler shows a range for each call. For an async call the range covers its begin."""
    small, large = torch.ones(4, 5), torch.ones(300, 1000)
    for tensor in (small, large):
        dist.all_reduce(tensor)
        [shown] = _shown_of(partial(dist.all_reduce, tensor))
        assert shown.name == "talweg:all_reduce"
        assert [list(shape) for shape in shown.input_shapes] == [list(tensor.shape)]

    def several() -> None:
        work = dist.all_reduce(large, async_op=True)
        dist.barrier()
        dist.broadcast(small, 0)
        work.wait()
        to, source = (_RANK + 1) % _SIZE, (_RANK - 1) % _SIZE
        for work in (dist.irecv(torch.ones(4, 5), source), dist.isend(small, to)):
            work.wait()

    every = {event.name.partition(":")[2]: event for event in _shown_of(several)}
    assert sorted(every) == ["all_reduce", "barrier", "broadcast", "recv", "send"], every
    # Later events are not within the range of a call that still goes on.
    assert all(event.cpu_parent is None for event in every.values())


def check_sparse_tensors() -> None:
    """Each rank has a row of its own twice, and 100 rows that all have."""
    indices = torch.cat([torch.tensor([_RANK, _RANK]), 1000 + torch.arange(100)])[None]
    reduce_op = dist.ReduceOp
    factor: Any = dist._make_nccl_premul_sum(0.5)
    for dtype, ops in (
        (torch.float32, (reduce_op.SUM, reduce_op.AVG, factor)),
        (torch.int32, (reduce_op.SUM, reduce_op.AVG)),
        (torch.bool, (reduce_op.SUM,)),
    ):
        values = torch.arange(1, 103).to(dtype)[:, None] * torch.ones(2, dtype=dtype)
        for op in ops:
            for is_async in (False, True, False):
                tensor = torch.sparse_coo_tensor(indices, values, (2000, 2))
                dense = tensor.to_dense()
                work: Any = dist.all_reduce(tensor, op, async_op=is_async)
                if is_async:
                    [future] = work.get_future().wait()
                    assert future is tensor
                if dtype is torch.bool:
                    dist.all_reduce(dense)
                else:
                    dist.all_reduce(dense, op)
                assert tensor.is_coalesced() and tensor._nnz() == _SIZE + 100
                assert tensor.dtype == dtype and torch.equal(tensor.to_dense(), dense), (dtype, op)
    expect(
        talweg.Unsupported,
        "premul_sum takes floating point",
        dist.all_reduce,
        torch.ones(3, dtype=torch.int32).to_sparse(),
        factor,
    )


def check_sparse_tensors_that_are_dealt() -> None:
    """Calls of two tensors take turns. From the second call of each on its rows are dealt."""
    tensors = [torch.arange(1.0, length).to_sparse() for length in (100, 300)]
    with (
        mock.patch.multiple(sparse_rows, _DEALT_BYTES_MIN=0, _DEALT_PART=1e9),
        mock.patch.object(sparse_sums, "dealt", wraps=sparse_sums.dealt) as dealt,
    ):
        for turn in range(3):
            for own in tensors:
                summed = own.clone()
                dist.all_reduce(summed)
                assert torch.equal(summed.to_dense(), _SIZE * own.to_dense())
            assert dealt.call_count == 2 * turn


def check_refused() -> None:
    words = "average is not defined for bool"
    bools = torch.tensor([True, False])
    expect(talweg.Unsupported, words, dist.all_reduce, bools, dist.ReduceOp.AVG)
    words = "0 are not ReduceOptions: call torch.distributed's own"
    expect(talweg.InvalidArgument, words, dist.group.WORLD.reduce, [torch.ones(3)], 0)
    # torch sorts the ranks of this group.
    own = dist.new_group([1, 0], group_desc="some words")
    assert _RANK >= 2 or own.group_desc == "some words"
    assert _RANK >= 2 or dist.get_process_group_ranks(own) == [0, 1]

    def coalesced(device: str) -> None:
        with dist._coalescing_manager(device=torch.device(device)):
            dist.all_reduce(torch.ones(3))

    expect(RuntimeError, "No backend type associated", coalesced, "cpu")
    _check_what_wants_a_backend_in_cpp()


def _check_what_wants_a_backend_in_cpp() -> None:
    operators = torch.ops._c10d_functional
    arguments = torch.ones(3), _SIZE, dist.group.WORLD.group_name
    gather = operators.all_gather_into_tensor_out
    output = torch.zeros(3 * _SIZE)
    if hasattr(dist, "set_timeout"):  # Torch 2.14 and newer.
        assert operators.wait_tensor(gather(*arguments, out=output)).sum() == 3 * _SIZE
    else:
        expect(RuntimeError, "No backend type associated", gather, *arguments, out=output)
    assert operators.wait_tensor(operators.all_gather_into_tensor(*arguments)).sum() == 3 * _SIZE
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    expect(RuntimeError, "should return Tens", model(torch.ones(1, 2)).sum().backward)


if __name__ == "__main__":
    check_groups_in_a_world_of_gloo()
    check_devices_that_are_named()
    dist.init_process_group("talweg")
    check_late_ranks()
    check_time_limits()
    check_what_a_work_says()
    check_what_a_profiler_shows()
    check_sparse_tensors()
    check_sparse_tensors_that_are_dealt()
    check_refused()
    check_groups_one_after_another()
    talweg.barrier()
