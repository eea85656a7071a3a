# SPDX-License-Identifier: Apache-2.0
"""One rank of collectives_test.py, for torch tensors. Each function is a case."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import talweg
import talweg.torch as tw
import torch
from expected_errors import expect
from numeric_reference import OPS, expected, same, sample

# How many ranks each node has.
_NODES: list[int] = json.loads(sys.argv[1])
_DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
]


def copies_of_every_dtype() -> None:
    rank, n = tw.rank(), tw.size()
    for dtype in _DTYPES:
        for count in (0, 3, 9000):
            each = [torch.full((r + 1, count), r + 1).to(dtype) for r in range(n)]
            every = tw.all_gather(each[rank])
            assert every.dtype is dtype and torch.equal(every, torch.cat(each)), dtype
            handle = tw.all_gather_async(each[rank].clone().zero_().add_(each[rank]), "named")
            assert torch.equal(tw.synchronize(handle), torch.cat(each))
            taken, counts = tw.all_to_all(each[0].expand(n, 1, count).reshape(n, count))
            assert counts == [1] * n and torch.equal(taken, each[0].expand(n, count))
            out = torch.empty(n, count, dtype=dtype)
            assert tw.all_gather_into(out, each[0]) is out
            assert torch.equal(out, each[0].expand(n, count))
            whole = torch.cat(each)
            part = tw.scatter(whole if rank == 1 else None, 1)
            assert torch.equal(part, torch.tensor_split(whole, n)[rank])
            total = tw.gather(each[rank], 1)
            assert total is None if rank != 1 else torch.equal(total, whole)
            if rank == 0:
                tw.send(whole, 1)
            elif rank == 1:
                assert torch.equal(tw.recv(torch.empty_like(whole), 0), whole)


def messages_that_are_open() -> None:
    """Both ranks have all receives open before either sends. Each takes the message of its turn."""
    rank, last = tw.rank(), tw.size() - 1
    if rank not in (0, last):
        return
    peer, sign = last - rank, 1 if rank == 0 else -1
    for count in (0, 5, 9000):
        values = torch.arange(count, dtype=torch.bfloat16) + 1
        filled, named = torch.zeros(2 * count, dtype=values.dtype)[::2], torch.zeros_like(values)
        receives = [
            tw.recv_async(filled, peer),
            tw.recv_async(None, peer),
            tw.recv_async((count,), peer, torch.bfloat16),
            tw.recv_async(named, peer, name="letter"),
        ]
        sends = []
        for turn, name in enumerate((None, None, None, "letter")):
            given = values * (sign * 2**turn)
            sends.append(tw.send_async(given, peer, name))
            given.zero_()  # The call has its own copy.
        results = [tw.synchronize(handle) for handle in reversed(receives)][::-1]
        assert results[0] is filled and results[3] is named
        for turn, result in enumerate(results):
            assert result.dtype is values.dtype
            assert torch.equal(result, values * (-sign * 2**turn)), (turn, result)
        assert [tw.synchronize(handle) for handle in sends] == [None] * 4


def reductions() -> None:
    rank, n = tw.rank(), tw.size()
    bits = [sample(np.random.default_rng(r), 7 * 5, "bf16") for r in range(n)]
    own = torch.from_numpy(bits[rank].view(np.int16)).view(torch.bfloat16).view(7, 5)
    wanted = torch.from_numpy(expected(bits, _NODES, "bf16", "sum").view(np.int16)).view(7, 5)
    part = tw.reduce_scatter(own, op=tw.Op.SUM)
    assert torch.equal(part.view(torch.int16), torch.tensor_split(wanted, n)[rank])
    ones = torch.ones(5, 3, dtype=torch.float16)
    for transposed in (ones, ones.t()):
        part = tw.reduce_scatter(transposed, op=tw.Op.SUM, prescale_factor=0.5, postscale_factor=3)
        assert (part == 1.5 * n).all()
        assert part.shape == torch.tensor_split(transposed, n)[rank].shape
    total = tw.reduce(torch.full((2,), rank), 1, op=tw.Op.MAX)
    assert total is None if rank != 1 else total.tolist() == [n - 1] * 2


def _tensor(values: np.ndarray, dtype: str) -> torch.Tensor:
    """Returns a tensor of the bits of `values`. NumPy has no bf16, so its bits come as u16."""
    if dtype == "bf16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def _check(actual: torch.Tensor | None, wanted: np.ndarray, dtype: str, what: str) -> None:
    assert actual is not None and actual.shape == wanted.shape, what
    assert actual.dtype is _tensor(wanted, dtype).dtype, f"{what}: {actual.dtype}"
    values = actual.contiguous().view(-1)
    bits = (values.view(torch.int16) if dtype == "bf16" else values).numpy()
    wanted = np.ascontiguousarray(wanted).reshape(-1)
    bits = bits.view(wanted.dtype)
    assert same(bits, wanted, dtype), f"{what}: {bits} not {wanted}"


def reductions_of_every_dtype() -> None:
    """Each operation, on each dtype for which it is defined, in each form of a reduction."""
    rank, n = tw.rank(), tw.size()
    for op, dtypes in OPS.items():
        for dtype in () if op == "broadcast" else dtypes:
            for rows in (0, 2 * n + 1, 300):
                flat = [sample(np.random.default_rng([r, rows]), rows * 7, dtype) for r in range(n)]
                wanted = expected(flat, _NODES, dtype, op).reshape(rows, 7)
                own, how = _tensor(flat[rank].reshape(rows, 7), dtype), tw.Op[op.upper()]
                what = f"{op} of {dtype}, {rows} rows"
                _check(tw.push_pull(own, op=how), wanted, dtype, f"push_pull, {what}")
                named = tw.push_pull_async(own, f"{dtype} {op} {rows}", op=how)
                _check(tw.synchronize(named), wanted, dtype, f"push_pull_async, {what}")
                across = own.clone().t().contiguous().t()
                assert tw.push_pull_inplace(across, op=how) is across
                _check(across, wanted, dtype, f"push_pull_inplace, {what}")
                part = tw.reduce_scatter(own, op=how)
                of_rank = np.array_split(wanted, n)[rank]
                _check(part, of_rank, dtype, f"reduce_scatter, {what}")
                [part] = tw.synchronize(tw.grouped_reduce_scatter_async([own], op=how))
                _check(part, of_rank, dtype, f"grouped_reduce_scatter, {what}")
                total = tw.reduce(own, n - 1, op=how)
                assert (total is not None) == (rank == n - 1)
                if total is not None:
                    _check(total, wanted, dtype, f"reduce, {what}")


def long_reductions() -> None:
    """Each aggregator sums more than 64 KiB of a call. A seed determines who comes first."""
    rank, n, count = tw.rank(), tw.size(), 300_007
    flat = [sample(np.random.default_rng([9, r]), count, "bf16") for r in range(n)]
    own, waits = _tensor(flat[rank], "bf16"), np.random.default_rng(9)
    for op in ("sum", "average"):
        wanted, how = expected(flat, _NODES, "bf16", op), tw.Op[op.upper()]
        for root in range(n):
            time.sleep(waits.random(n)[rank] * 0.004)
            part = tw.reduce_scatter(own, op=how)
            _check(part, np.array_split(wanted, n)[rank], "bf16", f"long reduce_scatter, {op}")
            time.sleep(waits.random(n)[rank] * 0.004)
            total = tw.reduce(own, root, op=how)
            assert (total is not None) == (rank == root)
            if total is not None:
                _check(total, wanted, "bf16", f"long reduce, {op}")


def complex_reductions() -> None:
    """Reductions take complex numbers as push_pull does."""
    rank, n = tw.rank(), tw.size()
    total = n * (n - 1) / 2
    for dtype in (torch.complex64, torch.complex128):
        for count in (0, 2, 3000):
            mine = torch.full((count, n), rank + 2j * rank, dtype=dtype).t().conj()
            wanted = torch.full((n, count), total - 2j * total, dtype=dtype)
            part = tw.reduce_scatter(mine, op=tw.Op.SUM)
            assert part.dtype == dtype and torch.equal(part, wanted[:1])
            [mean] = tw.grouped_reduce_scatter([mine])
            assert torch.equal(mean, wanted[:1] / n)
            whole = tw.reduce(mine, n - 1, op=tw.Op.SUM)
            assert (whole is None) == (rank < n - 1)
            if whole is not None:
                assert torch.equal(whole, wanted)
    number = tw.reduce(torch.tensor(1 + rank * 1j), 0, op=tw.Op.SUM)
    assert rank or number == n + total * 1j


def sets_and_factors_of_push_pull() -> None:
    rank, n = tw.rank(), tw.size()
    alone = tw.ProcessSet([rank])
    own = torch.full((3,), float(rank + 1))
    assert torch.equal(tw.push_pull(own, "own", process_set=alone), own)
    everyone = tw.ProcessSet(range(n))
    scaled = tw.push_pull(own, process_set=everyone, prescale_factor=2, postscale_factor=0.25)
    assert torch.equal(scaled, torch.full((3,), (n + 1) / 4))
    in_place = own.clone().to(torch.bfloat16)
    assert tw.push_pull_inplace(in_place, op=tw.Op.SUM, postscale_factor=2) is in_place
    assert (in_place == n * (n + 1)).all()
    weights = own.clone().requires_grad_()
    tw.push_pull(weights, op=tw.Op.SUM, prescale_factor=3, process_set=alone).sum().backward()
    assert torch.equal(weights.grad, torch.full((3,), 3.0))
    assert torch.equal(tw.broadcast(own, rank, process_set=alone), own)
    assert torch.equal(tw.broadcast_(own.clone(), 1), torch.full((3,), 2.0))
    empty = torch.empty(0, 4)
    assert tw.push_pull(empty).shape == (0, 4) and tw.broadcast(empty).shape == (0, 4)
    tw.barrier(alone)
    expect(
        talweg.InvalidArgument,
        f"broadcast: rank {rank} is not in ProcessSet([{(rank + 1) % n}])",
        tw.broadcast,
        own,
        process_set=tw.ProcessSet([(rank + 1) % n]),
    )


def groups_of_tensors() -> None:
    rank, n = tw.rank(), tw.size()
    tensors = [torch.full((rank + 1, i), i) for i in range(3)]
    for i, result in enumerate(tw.synchronize(tw.grouped_all_gather_async(tensors))):
        assert result.shape == (n * (n + 1) // 2, i) and (result == i).all()
    means = tw.grouped_push_pull([torch.full((2,), float(rank))] * 2, "grouped")
    assert all((mean == (n - 1) / 2).all() for mean in means)


def results_that_autograd_must_see() -> None:
    """Autograd refuses what it has saved of a tensor after a result was written into it."""
    rank, n = tw.rank(), tw.size()

    def write(how: str, target: torch.Tensor) -> None:
        if how == "all_gather_into":
            tw.all_gather_into(target, torch.ones(3))
        elif rank == 0:
            tw.send(torch.ones(3 * n), n - 1)
        elif rank == n - 1:
            tw.recv(target, 0)

    for how in ("all_gather_into", "recv"):
        for target in (torch.zeros(3 * n), torch.zeros(6 * n)[::2]):
            factors = torch.ones(3 * n, requires_grad=True)
            loss = (factors * target).sum()
            write(how, target)
            if target.sum() > 0:
                expect(RuntimeError, "modified by an inplace operation", loss.backward)


def arguments_of_the_wrong_kind() -> None:
    """Each wrong argument is refused with an error that names it, and nothing is pushed."""
    rank, n = tw.rank(), tw.size()
    ones, wrong, peer = torch.ones(4 * n), talweg.InvalidArgument, (tw.rank() + 1) % tw.size()
    calls = (
        *(tw.push_pull, tw.push_pull_async, tw.push_pull_inplace, tw.broadcast, tw.broadcast_),
        *(tw.all_gather, tw.reduce_scatter, tw.reduce, tw.gather, tw.all_to_all),
    )
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    for call in calls:
        for value in ([1.0], np.ones(3), None):
            expect(wrong, f"torch.Tensor, got {type(value).__name__}", call, value)
        expect(wrong, "device meta", call, torch.ones(4, device="meta"))
        expect(wrong, "nested", call, nested)
        expect(wrong, "to_dense", call, torch.eye(3).to_sparse())
    for call in (tw.broadcast, tw.broadcast_, tw.reduce):
        for root in (0.0, "0", None, n):
            expect(wrong, f"root_rank is {root!r}", call, ones, root)
    expanded = torch.ones(1).expand(4 * n * n)
    for call in (tw.push_pull_inplace, tw.broadcast_):
        expect(wrong, "clone()", call, expanded)
    expect(wrong, "clone()", tw.all_gather_into, expanded, ones)
    empty = torch.ones(1).expand(n, 0, 4)  # It has no elements to write.
    assert tw.all_gather_into(empty, torch.ones(1, 0, 4)) is empty
    scaled = torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8)
    expect(wrong, "dequantize()", tw.all_gather, scaled)
    for dtype in ("nope", np.float32, 7):
        expect(wrong, "not a dtype of torch", tw.recv, (4,), peer, dtype)
    expect(wrong, "got list", tw.grouped_push_pull, [[1.0]])
    assert len(tw.grouped_push_pull(torch.ones(2) for _ in range(3))) == 3
    assert tw.all_gather(torch.tensor([rank])).tolist() == list(range(n))


def main() -> int:
    tw.init()
    copies_of_every_dtype()
    messages_that_are_open()
    reductions()
    reductions_of_every_dtype()
    long_reductions()
    complex_reductions()
    sets_and_factors_of_push_pull()
    groups_of_tensors()
    results_that_autograd_must_see()
    arguments_of_the_wrong_kind()
    expect(talweg.InvalidArgument, "to_dense", tw.all_gather, torch.eye(2).to_sparse())
    return 0


if __name__ == "__main__":
    sys.exit(main())
