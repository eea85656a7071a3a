# SPDX-License-Identifier: Apache-2.0
"""One rank of horovod_test.py. It checks allgather, alltoall, reducescatter and process sets."""

from __future__ import annotations

import copy
import sys

import talweg.horovod.torch as hvd
import torch
from cases import run_cases
from expected_errors import expect
from torch import nn

_DTYPES = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)


def gathers() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in _DTYPES:
        own = torch.full((rank + 1, 3), rank).to(dtype)
        result = hvd.allgather(own, name=f"gather.{dtype}")
        wanted = torch.cat([torch.full((r + 1, 3), r).to(dtype) for r in range(size)])
        assert result.dtype == dtype and torch.equal(result, wanted)
    empty = hvd.allgather(torch.full((0 if rank == 0 else 2, 2), float(rank)))
    assert empty.shape == (2 * (size - 1), 2)
    expect(ValueError, "scalar", hvd.allgather, torch.tensor(1.0))
    results = hvd.grouped_allgather([torch.full((1,), rank), torch.full((2, 2), rank)], name="g")
    assert isinstance(results, tuple)
    assert results[0].tolist() == list(range(size)) and results[1].shape == (2 * size, 2)
    tensor = torch.ones(rank + 1, 2, requires_grad=True)
    hvd.allgather(tensor).sum().backward()
    assert tensor.grad is not None and (tensor.grad == 1).all()


def groups() -> None:
    """A grouped call and its asynchronous form, at different ranks, are one operation."""
    size, rank = hvd.size(), hvd.rank()
    tensors = [torch.full((size,), float(rank + 1), requires_grad=True) for _ in range(2)]
    total = size * (size + 1) / 2
    for grouped, start, wanted in (
        (hvd.grouped_allgather, hvd.grouped_allgather_async, size * total),
        (hvd.grouped_reducescatter, hvd.grouped_reducescatter_async, total / size),
    ):
        own_form = rank == 0
        results = grouped(tensors, name="g") if own_form else hvd.synchronize(start(tensors, "g"))
        assert [each.sum().item() for each in results] == [wanted] * 2, results
        for each, result in zip(tensors, grouped(tensors)):
            each.grad = None
            result.sum().backward()
            assert each.grad is not None and (each.grad == 1).all()
        assert len(grouped([])) == 0


def open_names() -> None:
    """A call refuses an open name. The name is free after synchronize(), and for other kinds."""
    own = torch.ones(hvd.size())
    for call in (hvd.allgather_async, hvd.alltoall_async, hvd.reducescatter_async):
        handle = call(own, name="open")
        expect(ValueError, "is open", call, own, name="open")
        hvd.synchronize(handle)
        hvd.synchronize(call(own, name="open"))


def sparse_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    indices, values = torch.tensor([[rank, size]]), torch.tensor([1.0, 2.0])
    tensor = torch.sparse_coo_tensor(indices, values, (size + 1,))
    result = hvd.sparse_allreduce_async(tensor, "sparse", hvd.Sum)()
    assert result.to_dense().tolist() == [1.0] * size + [2.0 * size]
    mean = hvd.sparse_allreduce_async(tensor, "sparse.mean", hvd.Average)()
    assert torch.allclose(mean.to_dense(), torch.tensor([1.0 / size] * size + [2.0]))
    assert result.is_coalesced() and result._nnz() == size + 1 and result.dtype == torch.float32
    for dtype in (torch.int32, torch.bool):
        own = torch.sparse_coo_tensor(indices, values.to(dtype), (size + 1,))
        summed = hvd.sparse_allreduce_async(own, "sparse.sum", hvd.Sum)().to_dense()
        assert summed.dtype == dtype and torch.equal(summed, result.to_dense().to(dtype))
        averaged = hvd.sparse_allreduce_async(own, "sparse.ints", hvd.Average)().to_dense()
        expected = result.to_dense().clamp(max=size * own.to_dense().max()) / size
        assert averaged.is_floating_point() and torch.allclose(averaged, expected), averaged
    expect(ValueError, "to_sparse(1)", hvd.sparse_allreduce_async, torch.ones(3), "dense", hvd.Sum)
    wait = hvd.sparse_allreduce_async(tensor, "open", hvd.Sum)
    expect(ValueError, "is open", hvd.sparse_allreduce_async, tensor, "open", hvd.Sum)
    assert wait().is_coalesced()


def exchanges() -> None:
    size, rank = hvd.size(), hvd.rank()
    own = torch.arange(2 * size) + 100 * rank
    result = hvd.alltoall(own)
    assert result.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    splits = [r + 1 for r in range(size)]
    rows = torch.full((sum(splits) + 1, 2), float(rank))  # The last row is dropped.
    received, counts = hvd.alltoall(rows, splits)
    assert counts.dtype == torch.int32 and counts.tolist() == [rank + 1] * size
    assert received[:, 0].tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]
    given = hvd.synchronize(hvd.alltoall_async(own, name="async"))
    assert isinstance(given, tuple) and len(given) == 2
    expect(ValueError, "sum", hvd.alltoall, own, [2 * size + 1] + [0] * (size - 1))
    expect(ValueError, "int32", hvd.alltoall, own, torch.ones(size))
    if size > 1:
        expect(ValueError, "multiple", hvd.alltoall, torch.ones(size + 1))
    tensor = torch.ones(size + 1, 2, requires_grad=True)
    hvd.alltoall(tensor, [1] * size)[0].sum().backward()
    assert tensor.grad is not None and tensor.grad[:, 0].tolist() == [1.0] * size + [0.0]


def scatters() -> None:
    size, rank = hvd.size(), hvd.rank()
    own = (torch.arange(size + 1.0) + 1).view(-1, 1).repeat(1, 3) * (rank + 1)
    ranks = size * (size + 1) // 2
    rows = [0, 1] if rank == 0 else [rank + 1]  # The lowest ranks get the remainder.
    total = hvd.reducescatter(own, name="scatter", op=hvd.Sum)
    assert total[:, 0].tolist() == [float((row + 1) * ranks) for row in rows]
    mean = hvd.reducescatter(own)
    assert torch.allclose(mean * size, total)
    scaled = hvd.reducescatter(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=2.0)
    assert torch.allclose(scaled, total)
    odd = torch.full((size,), 1 + (rank == 0))
    assert hvd.reducescatter(odd, postscale_factor=2.0).tolist() == [2 * (size + 1) // size]
    half = hvd.reducescatter(own, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert half.dtype == torch.float32 and torch.allclose(half, total)
    expect(ValueError, "scalar", hvd.reducescatter, torch.tensor(1.0))
    expect(hvd.HorovodInternalError, "Adasum", hvd.reducescatter, own, op=hvd.Adasum)
    expect(ValueError, "Average or", hvd.reducescatter, own, op=hvd.Max)
    truths = torch.ones(2, dtype=torch.bool)
    for start, unfit, words in (
        (hvd.grouped_reducescatter, torch.ones(()), "scalar"),
        (hvd.grouped_allgather, torch.ones(()), "scalar"),
        (hvd.grouped_allreduce, truths, "bool"),
    ):  # A member that cannot begin leaves the group's names free.
        expect(ValueError, words, start, [own, unfit], name="unfit")
        assert len(start([own, own], name="unfit")) == 2
    results = hvd.grouped_reducescatter([own, own], op=hvd.Sum)
    assert isinstance(results, list) and all(torch.equal(each, total) for each in results)
    for op, wanted in ((hvd.Sum, size), (hvd.Average, 1)):
        tensor = torch.ones(2 * size, requires_grad=True)
        hvd.reducescatter(tensor, op=op).sum().backward()
        assert tensor.grad is not None and (tensor.grad == wanted).all()


def process_sets() -> None:
    """All ranks add and remove a set of all ranks except the last, if there are several."""
    size, rank = hvd.size(), hvd.rank()
    if size == 1:
        return
    some = hvd.add_process_set(range(size - 1))
    assert some.process_set_id == 1 and some.size() == size - 1
    expect(ValueError, "registered already", hvd.add_process_set, range(size - 1))
    expect(ValueError, "registered already", hvd.add_process_set, range(size))
    if rank == size - 1:
        assert not some.included()
        one = torch.ones(1)
        for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            expect(ValueError, f"rank {rank}", call, one, process_set=some)
        expect(ValueError, f"rank {rank}", hvd.broadcast, one, 0, process_set=some)
        expect(ValueError, f"rank {rank}", hvd.broadcast_object, one, 0, process_set=some)
        expect(ValueError, f"rank {rank}", hvd.barrier, some)
        expect(ValueError, f"rank {rank}", some.rank)
    else:
        assert some.rank() == rank
        _operations(some)
    # Ranks outside of a set do not know its names.
    if some.included():
        hvd.allreduce(torch.ones(2), name="of a set, then of all", process_set=some)
    whole = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="of a set, then of all")
    assert (whole == size).all()
    _optimizer(some)
    hvd.barrier()
    assert hvd.remove_process_set(some) and some.process_set_id is None
    assert not hvd.remove_process_set(hvd.global_process_set)
    # Another set gets the same id, and has made no optimizer yet.
    others = hvd.add_process_set(range(1, size))
    assert others.process_set_id == 1
    if others.included():
        _operations(others)
    _optimizer(others)
    assert hvd.remove_process_set(others)


def _operations(some: hvd.ProcessSet) -> None:
    """Checks each operation in a set, and the gradients."""
    size, rank, place = some.size(), hvd.rank(), some.rank()
    assert size is not None and place is not None and some.ranks is not None
    root = some.ranks[-1]
    result = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="some", process_set=some)
    assert (result == size).all()
    hvd.barrier(some)

    tensor = torch.full((place + 1,), float(rank), requires_grad=True)
    gathered = hvd.allgather(tensor, process_set=some)
    assert gathered.tolist() == [float(r) for i, r in enumerate(some.ranks) for _ in range(i + 1)]
    (gathered * torch.arange(len(gathered))).sum().backward()
    begin = place * (place + 1) // 2
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [float(begin + i) for i in range(place + 1)]

    own = torch.full((2 * size,), float(rank), requires_grad=True)
    received = hvd.alltoall(own, process_set=some)
    assert received.tolist() == [float(r) for r in some.ranks for _ in range(2)]
    (received * (place + 1)).sum().backward()
    assert own.grad is not None
    assert own.grad.tolist() == [float(i + 1) for i in range(size) for _ in range(2)]

    whole = torch.arange(2.0 * size, requires_grad=True)
    part = hvd.reducescatter(whole, op=hvd.Sum, process_set=some)
    assert part.tolist() == [2.0 * place * size, (2.0 * place + 1) * size]
    part.sum().backward()
    assert whole.grad is not None and (whole.grad == size).all()
    mean = hvd.reducescatter(torch.full((size,), rank, dtype=torch.int32), process_set=some)
    assert mean.tolist() == [sum(some.ranks) // size]

    sent = torch.full((3,), float(rank), requires_grad=True)
    got = hvd.broadcast(sent, root, process_set=some)
    assert (got == root).all()
    got.sum().backward()
    assert sent.grad is not None and (sent.grad == (rank == root)).all()
    assert hvd.broadcast_object({"from": rank}, root, process_set=some) == {"from": root}
    outside = next(r for r in range(hvd.size()) if r not in some.ranks)
    expect(ValueError, "root_rank", hvd.broadcast, sent.detach(), outside, process_set=some)
    expect(ValueError, "root_rank", hvd.broadcast_object, 1, outside, process_set=some)

    tensors = [torch.full((1,), rank), torch.full((2, 2), rank)]
    for each in hvd.grouped_allgather(tensors, process_set=some):
        assert each.flatten().unique().tolist() == some.ranks
    totals = hvd.grouped_allreduce([torch.ones(2)] * 2, op=hvd.Sum, process_set=some)
    assert all((each == size).all() for each in totals)


def _optimizer(some: hvd.ProcessSet) -> None:
    """The ranks of the set step with their average. A rank outside steps with its own gradients."""
    rank = hvd.rank()
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=some
    )
    assert optimizer.process_set is some and optimizer.op == hvd.Average
    assert optimizer.gradient_predivide_factor == 1.0 and not optimizer.sparse_as_dense
    assert set(optimizer._parameter_names) == set(model.parameters())
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 2), float(rank))).sum().backward()
        if step == 0:
            optimizer.step()
            continue
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2
    assert type(copy.copy(optimizer)) is torch.optim.SGD
    assert some.ranks is not None
    mean = sum(some.ranks) / len(some.ranks) if some.included() else float(rank)
    assert torch.allclose(model.weight, torch.full((1, 2), -2.0 * mean))
    # The optimizer now belongs to all ranks.
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    with torch.no_grad():
        model.weight.zero_()
    optimizer.zero_grad()
    model(torch.full((1, 2), float(rank))).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, torch.full((1, 2), (1.0 - hvd.size()) / 2))


def main() -> int:
    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    run_cases(gathers, groups, open_names, sparse_gradients, exchanges, scatters, process_sets)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
