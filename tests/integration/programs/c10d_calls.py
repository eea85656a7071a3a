# SPDX-License-Identifier: Apache-2.0
"""Compares every call of torch.distributed that Gloo has too over both backends.

It runs as a rank. It makes all calls with Gloo, then, after destroy_process_group(), with Talweg.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from c10d_groups import each_backend

_CASES: dict[str, Callable[[int, int], Any]] = {}


def case(run: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """Registers a case. It gets the rank and the number of ranks, and its results are compared."""
    _CASES[run.__name__] = run
    return run


def _values(rank: int, count: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(count) % 5 + rank + 1).to(dtype)


@case
def all_reduce(rank: int, size: int) -> Any:
    found = []
    op = dist.ReduceOp
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.int32,
        torch.int64,
        torch.uint8,
    ):
        for each in (op.SUM, op.MIN, op.MAX, op.PRODUCT):
            tensor = _values(rank, 6, dtype)
            dist.all_reduce(tensor, each)
            found.append(tensor)
    for dtype in (torch.int32, torch.int64, torch.uint8):
        for each in (op.BAND, op.BOR, op.BXOR):
            tensor = _values(rank, 6, dtype)
            dist.all_reduce(tensor, each)
            found.append(tensor)
    return found


@case
def all_reduce_shapes(rank: int, size: int) -> Any:
    large = _values(rank, 100_000)
    strided = _values(rank, 24).view(4, 6).t()
    scalar = torch.tensor(float(rank))
    numbers = torch.complex(_values(rank), _values(rank + 1))
    for tensor in (large, strided, scalar, numbers):
        dist.all_reduce(tensor)
    return [large, strided, scalar, numbers]


@case
def all_reduce_coalesced(rank: int, size: int) -> Any:
    tensors = [_values(rank), _values(rank, 3000), _values(rank, 1)]
    dist.all_reduce_coalesced(tensors)
    return tensors


@case
def coalescing_manager(rank: int, size: int) -> Any:
    found: list[Any] = []
    for is_async in (False, True):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            reduced = [_values(rank + at, count) for at, count in enumerate((6, 3000, 1))]
            with dist._coalescing_manager(async_ops=is_async) as calls:
                for tensor in reduced:
                    dist.all_reduce(tensor, op)
            if is_async:
                calls.wait()
            found.append(reduced)
        gathered = [torch.zeros(size * count) for count in (4, 3000)]
        with dist._coalescing_manager(async_ops=is_async) as calls:
            for output in gathered:
                dist.all_gather_into_tensor(output, _values(rank, output.numel() // size))
        if is_async:
            calls.wait()
        scattered = [torch.zeros(count) for count in (4, 3000)]
        with dist._coalescing_manager(async_ops=is_async) as calls:
            for output in scattered:
                dist.reduce_scatter_tensor(output, _values(rank, output.numel() * size))
        if is_async:
            calls.wait()
        found += [gathered, scattered]
    return found


@case
def small_again(rank: int, size: int) -> Any:
    """Small calls repeat. All except the first go straight to the library."""
    found = []
    for repeat in range(4):
        for dtype in (torch.float32, torch.float16, torch.int64, torch.bool):
            tensor = (_values(rank, 6) + repeat).to(dtype)
            every = torch.zeros(size * 6, dtype=dtype)
            dist.all_gather_into_tensor(every, tensor)
            swapped = torch.zeros(size * 2, dtype=dtype)
            dist.all_to_all_single(swapped, _values(rank + repeat, size * 2, dtype))
            found += [every, swapped]
            if dtype is torch.bool:
                continue
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
                reduced = tensor.clone()
                open_call = None
                if repeat == 2:  # The call waits for its turn.
                    other = _values(rank, 6)
                    open_call = dist.all_reduce(other, async_op=True)
                dist.all_reduce(reduced, op)
                if open_call is not None:
                    open_call.wait()
                    found.append(other)
                # The elements of this tensor lie in another order.
                strided = _values(rank + repeat, 12, dtype).view(2, 6).t()
                dist.all_reduce(strided, op)
                part = torch.zeros(2, dtype=dtype)
                dist.reduce_scatter_tensor(part, _values(rank + repeat, size * 2, dtype), op)
                found += [reduced, strided, part]
        dist.barrier()
    return found


@case
def several_at_once(rank: int, size: int) -> Any:
    tensors = [_values(rank + at, 50 + at) for at in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works[:: 1 if rank % 2 else -1]:  # Ranks wait in different orders.
        assert work.wait()
        assert work.is_completed()
    return tensors


@case
def many_under_way(rank: int, size: int) -> Any:
    """Ranks make calls of all kinds and lengths in one order, and wait for them in any order."""
    same, own = random.Random(11), random.Random(rank)
    found, under_way = [], []
    for at in range(120):
        count = same.choice((3, 900, 70_000, 400_000)) * size
        tensor, output = _values(rank + at, count), torch.zeros(count)
        kind = same.randrange(4)
        if kind == 0:
            output = tensor
            work = dist.all_reduce(tensor, async_op=True)
        elif kind == 1:
            work = dist.all_gather_into_tensor(output, tensor[: count // size], async_op=True)
        elif kind == 2:
            output = output[: count // size]
            work = dist.reduce_scatter_tensor(output, tensor, async_op=True)
        else:
            work = dist.all_to_all_single(output, tensor, async_op=True)
        found.append(output)
        under_way.append(work)
        while len(under_way) > same.randrange(1, 9):
            under_way.pop(own.randrange(len(under_way))).wait()
    for work in under_way:
        work.wait()
    return [output[::97] for output in found]


@case
def what_a_work_says(rank: int, size: int) -> Any:
    outputs, every = [torch.zeros(6) for _ in range(size)], torch.zeros(size * 6)
    swapped, received, root = torch.zeros(size * 2), torch.zeros(3), size - 1
    gathered = [torch.zeros(6) for _ in range(size)] if rank == root else None
    parts = [_values(place, 3) for place in range(size)] if rank == root else None
    found: list[Any] = []
    for work in (
        dist.all_reduce(_values(rank), async_op=True),
        dist.broadcast(_values(rank), 0, async_op=True),
        dist.all_gather(outputs, _values(rank), async_op=True),
        dist.gather(_values(rank), gathered, root, async_op=True),
        dist.scatter(received, parts, root, async_op=True),
        dist.all_to_all_single(swapped, _values(rank, size * 2), async_op=True),
        dist.barrier(async_op=True),
    ):
        assert work.wait()
        found += [work.is_completed(), work.is_success(), work.exception()]
        found += [work.result(), work.get_future().wait()]
    work = dist.all_gather_into_tensor(every, _values(rank), async_op=True)
    work.wait()
    # Gloo's result is parts of the output, Talweg's the whole output.
    found += [torch.cat(work.result()), torch.cat(work.get_future().wait())]
    return found


@case
def futures(rank: int, size: int) -> Any:
    tensor = _values(rank)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    return [doubled.wait(), tensor]


@case
def broadcast(rank: int, size: int) -> Any:
    tensors = [_values(rank), _values(rank, 5000), _values(rank, 6, torch.bool)]
    tensors.append(_values(rank, 12).view(3, 4).t())
    tensors.append(torch.complex(_values(rank), _values(rank)))
    for root in (0, size - 1):
        for tensor in tensors:
            dist.broadcast(tensor, root)
            tensor += 1 if tensor.dtype != torch.bool else False
    return tensors


@case
def reduce(rank: int, size: int) -> Any:
    found = []
    for op in ("SUM", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"):
        for count in (6, 2000):
            tensor = _values(rank, count, torch.int32 if op.startswith("B") else torch.float32)
            dist.reduce(tensor, size - 1, getattr(dist.ReduceOp, op))
            # Talweg leaves the tensors of other ranks as they are, Gloo does not.
            found.append(tensor if rank == size - 1 else None)
    return found


@case
def all_gather(rank: int, size: int) -> Any:
    outputs = [torch.zeros(3, 2) for _ in range(size)]
    dist.all_gather(outputs, _values(rank).view(3, 2))
    large = [torch.zeros(3000) for _ in range(size)]
    dist.all_gather(large, _values(rank, 3000))
    joined = torch.zeros(size * 6)
    dist.all_gather_into_tensor(joined, _values(rank))
    stacked = torch.zeros(size * 3000, dtype=torch.bool)
    dist.all_gather_into_tensor(stacked, _values(rank, 3000, torch.bool))
    return [outputs, large, joined, stacked]


@case
def reduce_scatter(rank: int, size: int) -> Any:
    output, large = torch.zeros(4), torch.zeros(3000)
    dist.reduce_scatter(output, [_values(rank + place, 4) for place in range(size)])
    dist.reduce_scatter_tensor(large, _values(rank, 3000 * size))
    return [output, large]


@case
def all_to_all(rank: int, size: int) -> Any:
    even = torch.zeros(size * 2)
    dist.all_to_all_single(even, _values(rank, size * 2))
    # Rank r sends r + p rows to each place p.
    sent = [rank + place for place in range(size)]
    rows = torch.zeros(sum(sent), 3)
    given = _values(rank, sum(sent) * 3).view(-1, 3)
    dist.all_to_all_single(rows, given, sent, sent)
    return [even, rows]


@case
def in_place(rank: int, size: int) -> Any:
    """A rank's input is a part of its output, or the other way around."""
    found = []
    for count in (6, 50_000, 9_000_000):
        every = torch.zeros(size, count)
        own = every[rank].copy_(_values(rank, count))
        dist.all_gather_into_tensor(every.view(-1), own)
        found.append(every[:, ::997].clone())
        dist.reduce_scatter_tensor(own, every.view(-1))
        found.append(own[::997].clone())
    parts = [_values(rank, 9) for _ in range(size)]
    dist.all_gather(parts, parts[rank])
    return [*found, parts]


@case
def gather_and_scatter(rank: int, size: int) -> Any:
    root = size - 1
    gathered = [torch.zeros(5) for _ in range(size)] if rank == root else None
    dist.gather(_values(rank, 5), gathered, root)
    output = torch.zeros(7)
    parts = [_values(place, 7) for place in range(size)] if rank == root else None
    dist.scatter(output, parts, root)
    joined = torch.zeros(5 * size) if rank == root else torch.zeros(0)
    group = dist.group.WORLD
    if dist.get_backend() != "talweg":  # Gloo lacks gather_single.
        joined = joined if gathered is None else torch.cat(gathered)
    elif hasattr(dist, "gather_single"):  # Torch 2.14 and newer.
        dist.gather_single(_values(rank, 5), joined if rank == root else None, root)
    else:
        options = dist.GatherOptions()
        options.rootRank = root
        group.gather_single(joined, _values(rank, 5), options).wait()
    return [gathered, output, joined]


@case
def point_to_point(rank: int, size: int) -> Any:
    after, before = (rank + 1) % size, (rank - 1) % size
    first, second, third = torch.zeros(6), torch.zeros(4000), torch.zeros(2)
    if rank % 2 == 0:
        dist.send(_values(rank), after)
        dist.recv(first, before)
    else:
        assert dist.recv(first, before) == before
        dist.send(_values(rank), after)
    works = [
        dist.irecv(third, before, tag=7),
        dist.irecv(second, before, tag=8),
        dist.isend(_values(rank, 4000), after, tag=8),
        dist.isend(_values(rank, 2), after, tag=7),
    ]
    for work in works:
        work.wait()
    batch = torch.zeros(3)
    operations = [
        dist.P2POp(dist.isend, _values(rank, 3), after),
        dist.P2POp(dist.irecv, batch, before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [first, second, third, batch]


@case
def from_any_source(rank: int, size: int) -> Any:
    """Rank 0 gets messages from all others in any order. Those of one rank come in their order."""
    if rank > 0:
        for number in range(3):
            dist.send(_values(10 * number + rank, 4), 0)
        dist.send(_values(rank, 2), 0)
        return None
    got: dict[int, list[Any]] = {}
    last, tensor = torch.zeros(2), torch.zeros(4)
    while sum(map(len, got.values())) < 3 * (size - 1):
        # The fourth message of a rank is shorter. It is received by the rank's number.
        source = dist.recv(tensor)
        got.setdefault(source, []).append(tensor.tolist())
        if len(got[source]) == 3:
            break
    for source in range(1, size):
        for _ in range(3 - len(got.setdefault(source, []))):
            assert dist.recv(tensor, source) == source
            got[source].append(tensor.tolist())
        dist.recv(last, source)
        got[source].append(last.tolist())
    return got


@case
def sparse(rank: int, size: int) -> Any:
    """Ranks have different indices, some of them twice, and also dense dimensions."""
    found = []
    for dense in ((), (2,)):
        indices = torch.tensor([[rank, 0, rank], [1, 0, 1]])
        values = _values(rank, 3 * (2 if dense else 1)).view(3, *dense)
        tensor = torch.sparse_coo_tensor(indices, values, (size, 2, *dense))
        if rank == size - 1:
            tensor = torch.sparse_coo_tensor(torch.zeros(2, 0), values[:0], (size, 2, *dense))
        dist.all_reduce(tensor)
        found.append(tensor.to_dense())
    return found


@case
def all_gather_coalesced(rank: int, size: int) -> Any:
    inputs = [_values(rank, 4), _values(rank, 6).view(2, 3)]
    outputs = [[torch.zeros_like(each) for each in inputs] for _ in range(size)]
    dist.all_gather_coalesced(outputs, inputs)
    return outputs


@case
def objects(rank: int, size: int) -> Any:
    every: list[Any] = [None] * size
    dist.all_gather_object(every, {"rank": rank, "text": "x" * 100 * rank})
    told = [rank, "of", rank] if rank == 0 else [None, None, None]
    dist.broadcast_object_list(told, 0)
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("from", rank), gathered, 0)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [{"to": place} for place in range(size)] if rank == 0 else None)
    if rank == 0:
        dist.send_object_list(["a", 1], 1)
    received: list[Any] = [None, None]
    if rank == 1:
        dist.recv_object_list(received, 0)
    return [every, told, gathered, mine, received]


@case
def barrier(rank: int, size: int) -> Any:
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    return None


@case
def groups(rank: int, size: int) -> Any:
    found = []
    for ranks in ([0], [size - 1, 0], list(range(1, size)), list(range(size))):
        group = dist.new_group(ranks)
        if rank not in ranks:
            continue
        tensor = _values(rank)
        dist.all_reduce(tensor, group=group)
        told = _values(rank)
        dist.broadcast(told, max(ranks), group=group)
        outputs = [torch.zeros(6) for _ in ranks]
        dist.all_gather(outputs, _values(rank), group=group)
        dist.barrier(group=group)
        found += [tensor, told, outputs, dist.get_rank(group), dist.get_world_size(group)]
        dist.destroy_process_group(group)
    return found


@case
def forms_of_one_tensor(rank: int, size: int) -> Any:
    """The group's own calls take a tensor instead of a list."""
    group, op, root, limit = dist.group.WORLD, dist.ReduceOp.MAX, size - 1, timedelta(seconds=100)
    summed, largest, told, last = (_values(rank) for _ in range(4))
    every, gathered = ([torch.zeros(6) for _ in range(size)] for _ in range(2))
    part, got, parts = torch.zeros(6), torch.zeros(6), [_values(rank + to) for to in range(size)]
    is_root = rank == root
    works = [
        group.allreduce(summed),
        group.allreduce(largest, op, limit),
        group.broadcast(told, root),
        group.broadcast(last, root=root, timeout=limit),
        group.allgather(every, _values(rank)),
        group.gather(gathered if is_root else [], _values(rank), root),
        group.scatter(got, parts if is_root else [], root, limit),
        group.reduce_scatter(part, parts),
        group.barrier(timeout=limit),
    ]
    for work in works:
        work.wait()
    reduced = _values(rank)
    group.reduce(reduced, root, op).wait()
    reduced = reduced if is_root else None  # Talweg leaves other ranks' tensors, Gloo does not.
    return [summed, largest, told, last, every, gathered, got, part, reduced]


@case
def groups_in_any_order(rank: int, size: int) -> Any:
    """The places of a group are not in the order of the ranks, in each call that has parts."""
    found: list[Any] = []
    for ranks in ([*range(1, size), 0], [size - 1, 0], list(range(size))[::-1]):
        group = dist.new_group(ranks, sort_ranks=False)
        if rank not in ranks:
            continue
        place, count = ranks.index(rank), len(ranks)
        found += [dist.get_rank(group), dist.get_process_group_ranks(group)]
        for length in (3, 4000):
            outputs = [torch.zeros(length) for _ in ranks]
            works = [dist.all_gather(outputs, _values(rank, length), group, async_op=True)]
            joined = torch.zeros(length * count)
            given = _values(rank, length * count)
            works.append(dist.all_gather_into_tensor(joined, given[:length], group, async_op=True))
            part, parted = torch.zeros(length), torch.zeros(length)
            pieces = [_values(10 * rank + to, length) for to in range(count)]
            works.append(dist.reduce_scatter(part, pieces, group=group, async_op=True))
            works.append(dist.reduce_scatter_tensor(parted, given, group=group, async_op=True))
            swapped, rows = torch.zeros(length * count), [place + to for to in range(count)]
            works.append(dist.all_to_all_single(swapped, given, group=group, async_op=True))
            split = torch.zeros(sum(rows), length)
            sent = _values(rank, sum(rows) * length).view(-1, length)
            works.append(dist.all_to_all_single(split, sent, rows, rows, group, async_op=True))
            gathered = [torch.zeros(length) for _ in ranks] if place == 1 else None
            works.append(dist.gather(_values(rank, length), gathered, ranks[1], group, True))
            scattered = torch.zeros(length)
            told = pieces if place == 1 else None
            works.append(dist.scatter(scattered, told, ranks[1], group, async_op=True))
            for work in works:
                work.wait()
            result = works[0].result()
            assert all(one is other for one, other in zip(result, outputs)), result
            found += [outputs, joined, part, parted, swapped, split, gathered, scattered]
            summed, last = _values(rank, length), _values(rank, length)
            dist.all_reduce(summed, group=group)
            dist.broadcast(last, group_src=count - 1, group=group)
            found += [summed, last]
        got = torch.zeros(2)
        to, source = (place + 1) % count, (place - 1) % count
        sending = dist.isend(_values(rank, 2), group=group, group_dst=to)
        dist.recv(got, group=group, group_src=source)
        sending.wait()
        every: list[Any] = [None] * count
        dist.all_gather_object(every, rank, group)
        found += [got, every]
    return found


@case
def functional(rank: int, size: int) -> Any:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    every = list(range(size))
    return [
        functional.all_reduce(_values(rank), "sum", every).clone(),
        functional.all_gather_tensor(_values(rank), 0, group).clone(),
        functional.reduce_scatter_tensor(_values(rank, size * 2), "sum", 0, group).clone(),
        functional.broadcast(_values(rank), 1, group).clone(),
        functional.all_to_all_single(_values(rank, size * 2), None, None, group).clone(),
        functional.permute_tensor(_values(rank), [*every[1:], 0], group).clone(),
    ]


@case
def functional_of_many(rank: int, size: int) -> Any:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    inputs = [_values(rank), _values(rank, 3000)]
    longer = [_values(rank, size * 2), _values(rank, size * 3000)]
    found = [
        *functional.all_reduce_coalesced(inputs, "sum", group),
        *functional.all_gather_into_tensor_coalesced(inputs, group),
        *functional.reduce_scatter_tensor_coalesced(longer, "sum", [0, 0], group),
    ]
    return [each.clone() for each in found]


@case
def functional_with_gradients(rank: int, size: int) -> Any:
    import torch.distributed._functional_collectives as functional

    group, found = dist.group.WORLD, []
    sent, got = [rank + 1] * size, [place + 1 for place in range(size)]
    for call, rows in (
        (lambda tensor: functional.all_gather_tensor_autograd(tensor, 0, group), 2),
        (lambda tensor: functional.reduce_scatter_tensor_autograd(tensor, "sum", 0, group), size),
        (
            lambda tensor: functional.all_to_all_single_autograd(tensor, got, sent, group),
            sum(sent),
        ),
    ):
        tensor = _values(rank, rows * 3).view(rows, 3).requires_grad_()
        result = call(tensor)
        (result * _values(rank, result.numel()).view(result.shape)).sum().backward()
        found += [result.detach(), tensor.grad]
    return found


@case
def results_that_are_not_there_yet(rank: int, size: int) -> Any:
    """The result of a functional collective has no memory yet, and any call may take it."""
    import torch.distributed._functional_collectives as functional

    def result_of(count: int) -> torch.Tensor:
        tensor = functional.all_reduce(_values(rank, count), "sum", dist.group.WORLD)
        assert type(tensor) is functional.AsyncCollectiveTensor
        return tensor

    found: list[Any] = []
    for count in (size, 2000 * size):
        pending = partial(result_of, count)
        dist.all_reduce(pending() + 0)  # The next call like it would take the short way.
        summed, told, swapped, got = pending(), pending(), pending(), pending()
        dist.all_reduce(summed)
        dist.broadcast(told, 1)
        every = [torch.zeros(count) for _ in range(size)]
        dist.all_gather(every, pending())
        joined = torch.zeros(count * size)
        dist.all_gather_into_tensor(joined, pending())
        part = torch.zeros(count // size)
        dist.reduce_scatter_tensor(part, pending())
        dist.all_to_all_single(swapped, pending().view(count))
        for work in (dist.isend(pending(), (rank + 1) % size), dist.irecv(got, (rank - 1) % size)):
            work.wait()
        found += [summed + 0, told + 0, every, joined, part, swapped + 0, got + 0]
    return found


@case
def subgroups(rank: int, size: int) -> Any:
    mine, _ = dist.new_subgroups(size // 2)
    tensor = _values(rank)
    dist.all_reduce(tensor, group=mine)
    return tensor


if __name__ == "__main__":
    each_backend(_CASES)
