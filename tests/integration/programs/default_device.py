# SPDX-License-Identifier: Apache-2.0
"""The program's default device is not the host's memory. Talweg's own tensors have to be there.

Tensors of the device meta have no memory, so the results are wrong, or an error is raised, if a
tensor of Talweg's is made on the default device.
"""

from __future__ import annotations

import datetime
from functools import partial
from typing import Any

import talweg.horovod.torch as hvd
import talweg.torch as tw
import torch
import torch.distributed as dist
from torch import nn

_full = partial(torch.full, device="cpu")


def _check(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype, device="cpu"))


def _of_some(tensor: torch.Tensor) -> torch.Tensor:
    """Returns every second column, which does not lie in one piece."""
    return tensor[:, ::2]


def _sparse(rank: int, size: int) -> torch.Tensor:
    """Returns 1 at the rank's own place, and 2 at one place after those of all ranks."""
    indices = torch.tensor([[rank, size]], device="cpu")
    values = torch.tensor([1.0, 2.0], device="cpu")
    return torch.sparse_coo_tensor(indices, values, (size + 1,), device="cpu")


def backend(rank: int, size: int, all_ranks: list[int]) -> None:
    dist.barrier()
    summed = _of_some(_full((3, 8), rank + 1.0))
    dist.all_reduce(summed)
    _check(summed, [[sum(all_ranks) + float(size)] * 4] * 3)
    each = [_of_some(_full((2, 4), 0.0)) for _ in range(size)]
    dist.all_gather(each, _full((2, 2), float(rank)))
    for other, got in enumerate(each):
        _check(got, [[float(other)] * 2] * 2)
    integers = _full((5,), rank + 1, dtype=torch.int64)
    dist.all_reduce(integers, dist.ReduceOp.AVG)
    _check(integers, [(sum(all_ranks) + size) // size] * 5)
    sparse = _sparse(rank, size)
    dist.all_reduce(sparse)
    _check(sparse.to_dense(), [1.0] * size + [2.0 * size])
    got = _full((4,), 0.0)
    works = [
        dist.isend(_full((4,), float(rank)), (rank + 1) % size),
        dist.irecv(got, (rank - 1) % size),
    ]
    for work in works:
        work.wait()
    _check(got, [float((rank - 1) % size)] * 4)
    tw.monitored_barrier(timeout=datetime.timedelta(seconds=60))


def calls(rank: int, size: int, all_ranks: list[int]) -> None:
    given = _full((4, 2), float(rank))
    _check(tw.push_pull(given, "sum", op=tw.Op.SUM), [[float(sum(all_ranks))] * 2] * 4)
    _check(tw.all_gather(given[:1]), [[float(each)] * 2 for each in all_ranks])
    _check(tw.reduce_scatter(_full((size, 2), 1.0), op=tw.Op.SUM), [[float(size)] * 2])
    got, _ = tw.all_to_all(_full((size, 2), float(rank)))
    _check(got, [[float(each)] * 2 for each in all_ranks])
    taken = _full((size, 4), 0.0)
    tw.all_gather_into(_of_some(taken), _full((1, 2), float(rank)))
    _check(_of_some(taken), [[float(each)] * 2 for each in all_ranks])
    sparse = tw.push_pull_sparse(_sparse(rank, size), "sparse", tw.Op.SUM)
    _check(sparse.to_dense(), [1.0] * size + [2.0 * size])
    _check(tw.push_pull_sparse(_sparse(rank, size)).to_dense()[-1], 2.0)
    state = {"a": _full((3, 4), float(rank)).t(), "b": _full((), rank)}
    tw.broadcast_parameters(state, root_rank=0)
    _check(state["a"], [[0.0] * 3] * 4)
    assert tw.broadcast_object(rank, root_rank=0) == 0


def steps(rank: int, size: int, all_ranks: list[int]) -> None:
    embedding = nn.Embedding(4, 2, sparse=True, device="cpu")
    inner: Any = torch.optim.SGD(embedding.parameters(), lr=1.0)
    sparse = tw.DistributedOptimizer(
        inner, [("embedding", embedding.weight)], name="sparse optimizer"
    )
    before = embedding.weight.detach().clone()
    for _ in range(2):
        sparse.zero_grad()
        embedding(torch.tensor([0], device="cpu")).sum().backward()
        sparse.step()
    _check(embedding.weight.detach()[1:], before[1:].tolist())
    for module, average in ((tw, None), (hvd, hvd.Average), (hvd, hvd.Adasum)):
        model = nn.Linear(3, 2, device="cpu")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        options = {} if average is None else {"op": average}
        optimizer = module.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        for _ in range(2):
            optimizer.zero_grad()
            model(_full((1, 3), float(rank))).sum().backward()
            optimizer.step()
        if average is not hvd.Adasum:
            _check(model.bias, [1.0 - 1.0 - 1.9] * 2)
        module.broadcast_optimizer_state(optimizer, root_rank=0)


def horovod(rank: int, size: int, all_ranks: list[int]) -> None:
    given = _full((2, 2), float(rank), requires_grad=True)
    every = hvd.allgather(given)
    _check(every.detach()[::2, 0], [float(each) for each in all_ranks])
    every.sum().backward()
    _check(given.grad, [[1.0] * 2] * 2)
    got, _ = hvd.alltoall(_full((size,), float(rank)), [1] * size)
    _check(got, [float(each) for each in all_ranks])
    _check(hvd.alltoall(_full((size,), float(rank))), [float(each) for each in all_ranks])
    _check(hvd.allreduce(_full((3,), 1.0), op=hvd.Adasum), [1.0] * 3)
    sparse = hvd.sparse_allreduce_async(_sparse(rank, size), "sparse", hvd.Sum)()
    _check(sparse.to_dense(), [1.0] * size + [2.0 * size])


def main() -> None:
    torch.set_default_device("meta")
    dist.init_process_group("talweg", timeout=datetime.timedelta(seconds=60))
    hvd.init()
    rank, size = dist.get_rank(), dist.get_world_size()
    for case in (backend, calls, steps, horovod):
        case(rank, size, list(range(size)))
    print("done", flush=True)


if __name__ == "__main__":
    main()
