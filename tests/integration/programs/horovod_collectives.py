# SPDX-License-Identifier: Apache-2.0
"""One rank of horovod_test.py: allgather, alltoall, reducescatter and process sets.

What this version of Talweg lacks is left out, aloud.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import talweg.horovod.torch as hvd
import torch
from expected_errors import expect
from talweg._compat.torch import collectives
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


def sparse_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    indices, values = torch.tensor([[rank, size]]), torch.tensor([1.0, 2.0])
    tensor = torch.sparse_coo_tensor(indices, values, (size + 1,))
    result = hvd.sparse_allreduce_async(tensor, "sparse", hvd.Sum)()
    assert result.to_dense().tolist() == [1.0] * size + [2.0 * size]
    mean = hvd.sparse_allreduce_async(tensor, "sparse.mean", hvd.Average)()
    assert torch.allclose(mean.to_dense(), torch.tensor([1.0 / size] * size + [2.0]))


def exchanges() -> None:
    size, rank = hvd.size(), hvd.rank()
    own = torch.arange(2 * size) + 100 * rank
    result = hvd.alltoall(own)
    assert result.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    splits = [r + 1 for r in range(size)]
    rows = torch.full((sum(splits) + 1, 2), float(rank))  # One row more, which is dropped.
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
    rows = [0, 1] if rank == 0 else [rank + 1]  # The remainder goes to the lowest ranks.
    total = hvd.reducescatter(own, name="scatter", op=hvd.Sum)
    assert total[:, 0].tolist() == [float((row + 1) * ranks) for row in rows]
    mean = hvd.reducescatter(own)
    assert torch.allclose(mean * size, total)
    scaled = hvd.reducescatter(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=2.0)
    assert torch.allclose(scaled, total)
    half = hvd.reducescatter(own, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert half.dtype == torch.float32 and torch.allclose(half, total)
    expect(ValueError, "scalar", hvd.reducescatter, torch.tensor(1.0))
    expect(hvd.HorovodInternalError, "Adasum", hvd.reducescatter, own, op=hvd.Adasum)
    expect(ValueError, "Average or", hvd.reducescatter, own, op=hvd.Max)
    results = hvd.grouped_reducescatter([own, own], op=hvd.Sum)
    assert isinstance(results, list) and all(torch.equal(each, total) for each in results)
    for op, wanted in ((hvd.Sum, size), (hvd.Average, 1)):
        tensor = torch.ones(2 * size, requires_grad=True)
        hvd.reducescatter(tensor, op=op).sum().backward()
        assert tensor.grad is not None and (tensor.grad == wanted).all()


def process_sets() -> None:
    """All ranks but the last, if there are several; added and removed by all."""
    size, rank = hvd.size(), hvd.rank()
    if size == 1:
        return
    some = hvd.add_process_set(range(size - 1))
    assert some.process_set_id == 1 and some.size() == size - 1
    expect(ValueError, "registered already", hvd.add_process_set, range(size - 1))
    if rank == size - 1:
        assert not some.included()
        expect(ValueError, f"rank {rank}", hvd.allreduce, torch.ones(1), process_set=some)
        expect(ValueError, f"rank {rank}", some.rank)
    else:
        assert some.rank() == rank
        result = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="some", process_set=some)
        assert (result == size - 1).all()
        hvd.barrier(some)
    model = nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=some
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()  # The last rank's with its own gradients.
    hvd.barrier()
    assert hvd.remove_process_set(some) and some.process_set_id is None
    assert not hvd.remove_process_set(hvd.global_process_set)


CASES: list[tuple[str, Callable[[], None]]] = [
    ("all_gather_async", gathers),
    ("all_gather_async", sparse_gradients),
    ("all_to_all_async", exchanges),
    ("reduce_scatter_async", scatters),
    ("ProcessSet", process_sets),
]


def main() -> int:
    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    for needed, case in CASES:
        if not collectives.has(needed):
            print(f"SKIPPED: {case.__name__}: Talweg has no {needed} yet", flush=True)
            continue
        print(f"case {case.__name__}", flush=True)
        case()
    if not collectives.has("all_gather_async"):
        expect(ValueError, "allgather_object", hvd.allgather, torch.ones(2))
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
