# SPDX-License-Identifier: Apache-2.0
"""Checks hvd.join() of torch. The others' plain calls go on with zeros, for any name and shape.

    horovod_join.py FILE

FILE does not exist. Rank 0 makes it.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch
from cases import run_cases
from expected_errors import expect
from talweg import _client, _joining
from talweg._collectives import sparse_rows, sparse_sums

DTYPES = (torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
NAMES = ("small", "large")


def others_go_on(first: int, calls: Callable[[], None]) -> None:
    """Rank `first` joins at once, and the others after `calls`. All get the same last rank."""
    if hvd.rank() != first:
        calls()
    last = hvd.join()
    told = hvd.allgather_object(last)
    assert told == [last] * hvd.size(), told
    assert last != first or hvd.size() == 1, last


def _floor(tensor: torch.Tensor, op: int, absent: int = 1) -> torch.Tensor:
    """Returns the average or the sum of one tensor if some ranks have joined."""
    total = tensor * (hvd.size() - absent)
    if op == hvd.Sum:
        return total
    if tensor.dtype.is_floating_point:
        return total / hvd.size()
    return torch.div(total, hvd.size(), rounding_mode="trunc")


def reductions() -> None:
    """Checks dtypes, shapes, each first rank, and old, new and repeated names."""
    for dtype in DTYPES:
        for dimensions in (1, 2, 3):
            for first in range(min(2, hvd.size())):
                for is_known in (False, True):
                    torch.manual_seed(7)
                    small = torch.randint(-100, 100, (5,) * dimensions).to(dtype)
                    large = torch.randint(-100, 100, (17,) * dimensions).to(dtype)
                    if is_known:
                        handles = [
                            hvd.allreduce_async(each, name=name)
                            for each, name in zip((small, large), NAMES)
                        ]
                        for handle in handles:
                            hvd.synchronize(handle)

                    def calls(small: Any = small, large: Any = large) -> None:
                        for op in (hvd.Average, hvd.Sum):
                            handles = [
                                hvd.allreduce_async(each, name=name, op=op)
                                for each, name in zip((small, large), NAMES)
                            ]
                            for each, handle in zip((small, large), handles):
                                found = hvd.synchronize(handle)
                                wanted = _floor(each, op)
                                assert torch.allclose(found, wanted, atol=1e-3), (found, wanted)

                    others_go_on(first, calls)


def orders() -> None:
    """Checks new names in opposite orders, groups, calls in place or without names, min and max."""
    size, rank = hvd.size(), hvd.rank()
    count = 7

    def calls() -> None:
        order = list(range(count))
        if rank % 2:
            order.reverse()
        handles = {
            i: hvd.allreduce_async(torch.full((i + 1,), 2.0), name=f"orders.{i}", op=hvd.Sum)
            for i in order
        }
        for i in order[::-1]:
            assert torch.equal(hvd.synchronize(handles[i]), torch.full((i + 1,), 2.0 * (size - 1)))
        several = [torch.ones(3), torch.full((2, 2), 4.0)]
        for name in (None, "several"):
            for each, found in zip(several, hvd.grouped_allreduce(several, name=name)):
                assert torch.allclose(found, each * (size - 1) / size)
        own = torch.full((3000,), 3.0)
        assert hvd.allreduce_(own, op=hvd.Sum) is own
        assert torch.equal(own, torch.full((3000,), 3.0 * (size - 1)))
        for op, wanted in ((hvd.Min, 0.0), (hvd.Max, 2.0), (hvd.Product, 0.0)):
            for name in (None, f"extremes.{op}"):
                assert float(hvd.allreduce(torch.tensor([2.0]), op=op, name=name)) == wanted
        assert float(hvd.allreduce(torch.tensor([-2.0]), op=hvd.Max)) == 0.0
        scaled = hvd.allreduce(torch.ones(4), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        assert torch.allclose(scaled, torch.full((4,), 2.0 * (size - 1)))
        hvd.barrier()
        weight = torch.ones(2, requires_grad=True)
        hvd.allreduce(weight, op=hvd.Sum, name="differentiable").sum().backward()
        assert weight.grad is not None and float(weight.grad[0]) == size - 1
        assert hvd.allreduce(torch.ones(0), name="empty").numel() == 0

    for first in range(min(2, size)):
        others_go_on(first, calls)


def told_before() -> None:
    """The others' name came together with one of this rank's names, before this rank joined."""
    size, ones = hvd.size(), torch.ones(2)
    if hvd.rank() == 0:
        hvd.allreduce(ones, name="common")
    else:
        handle = hvd.allreduce_async(ones, name="of the others", op=hvd.Sum)
        hvd.allreduce(ones, name="common")
        assert torch.equal(hvd.synchronize(handle), ones * (size - 1))
    assert hvd.join() == size - 1


def one_after_another() -> None:
    """Rank r has r + 1 batches. Averages divide by the number of all ranks.

    It is done twice, with new names.
    """
    size, rank = hvd.size(), hvd.rank()
    for turn in range(2):
        for batch in range(rank + 1):
            there = size - batch
            for name in (None, "batch", f"batch.{turn}.{batch}"):
                found = hvd.allreduce(torch.full((2000,), float(size)), name=name)
                assert torch.equal(found, torch.full((2000,), float(there))), (found[0], there)
            found = hvd.allreduce(torch.ones(batch + 1), name=f"length.{turn}", op=hvd.Sum)
            assert torch.equal(found, torch.full((batch + 1,), float(there)))
        assert hvd.join() == size - 1
    assert hvd.join() == size - 1  # If all join at once, the largest rank counts as the last.
    # All ranks know now which tensor each name means.
    assert torch.equal(hvd.allreduce(torch.ones(9), name="batch", op=hvd.Sum), torch.ones(9) * size)
    assert torch.equal(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.ones(1) * size)


def sparse() -> None:
    """A sparse allreduce goes on without the rows of joined ranks."""
    size = hvd.size()

    def calls() -> None:
        for rows in (2, 900):
            own = torch.sparse_coo_tensor(
                torch.arange(rows).view(1, -1), torch.ones(rows, 2), (rows, 2)
            )
            found = hvd.sparse_allreduce_async(own, f"sparse.{rows}", hvd.Average)().to_dense()
            assert torch.allclose(found, torch.full((rows, 2), (size - 1) / size)), found

    others_go_on(0, calls)


def sparse_that_is_dealt() -> None:
    """Rows are dealt to all ranks only while none has joined, and the first call gathers them."""
    size = hvd.size()
    own = torch.sparse_coo_tensor(torch.arange(300).view(1, -1), torch.ones(300, 2), (300, 2))

    def calls(absent: int = 1) -> None:
        for _ in range(3):
            found = hvd.sparse_allreduce_async(own, "dealt", hvd.Sum)().to_dense()
            assert torch.equal(found, torch.full((300, 2), float(size - absent))), found

    with mock.patch.multiple(sparse_rows, _DEALT_BYTES_MIN=0, _DEALT_PART=1e9):
        for first in range(min(2, size)):
            with mock.patch.object(sparse_sums, "dealt", wraps=sparse_sums.dealt) as dealt:
                calls(absent=0)
            assert dealt.call_count == 2, dealt.call_count
            with mock.patch.object(sparse_sums, "dealt", wraps=sparse_sums.dealt) as dealt:
                others_go_on(first, calls)
            # The call that learns of it has tried to deal them.
            assert dealt.call_count == (hvd.rank() != first), dealt.call_count


def others_raise() -> None:
    """Gathers, broadcasts and similar calls need every rank, as in Horovod. The job goes on."""
    rows = torch.ones(hvd.size(), 3)
    last = hvd.size() - 1
    for settled in ("settled", "left"):
        hvd.broadcast(rows, last, name=settled)

    def names_rank_0(rows: torch.Tensor, root: int, name: str | None) -> None:
        """The error names rank 0, whether ranks, an agent, or ranks that sum in place tell it."""
        try:
            hvd.broadcast(rows, root, name=name)
        except hvd.HorovodInternalError as error:
            words = r"rank 0 (\(.*\) gives nothing, since it |has pushed nothing, since it )?"
            assert re.search(words + r"has joined \(hvd\.join\(\)\)", str(error)), error
            return
        raise AssertionError("a broadcast beside a joined rank raised nothing")

    def calls() -> None:
        who = "rank 0 has joined (hvd.join())"
        internal = hvd.HorovodInternalError
        for name in (None, "raises"):
            expect(internal, who, hvd.allgather, rows, name=name)
            expect(internal, who, hvd.alltoall, rows, name=name)
            expect(internal, who, hvd.reducescatter, rows, name=name)
            names_rank_0(rows, last, name)
            names_rank_0(rows, 0, name)
        names_rank_0(rows, last, "settled")
        names_rank_0(rows, 1, "left")  # From here on the name means another tensor.
        expect(internal, who, hvd.reducescatter, torch.ones(hvd.size(), 5000))
        expect(internal, "joined", hvd.allgather_object, "x")
        expect(internal, "joined", hvd.broadcast_object, "x", last)
        assert torch.allclose(hvd.allreduce(rows, op=hvd.Sum), rows * last)

    others_go_on(0, calls)
    assert torch.equal(hvd.allgather(rows), rows.repeat(hvd.size(), 1))
    for name in (None, "settled", "raises"):
        found = hvd.broadcast(rows * hvd.rank(), last, name=name)
        assert torch.equal(found, rows * last)
    hvd.allgather_object("x")


def disagreements() -> None:
    """Ranks whose shapes differ get an error, which names only them."""
    size, rank = hvd.size(), hvd.rank()
    if size < 3:
        return

    def calls() -> None:
        for name in (None, "new", "small"):
            expect(
                hvd.HorovodInternalError,
                "rank 2",
                hvd.allreduce,
                torch.ones(rank + 2),
                name=name,
            )
        found = hvd.allreduce(torch.ones(6), op=hvd.Sum, name="new")
        assert torch.equal(found, torch.ones(6) * (size - 1))

    others_go_on(0, calls)
    assert torch.equal(hvd.allreduce(torch.ones(2), op=hvd.Sum, name="new"), torch.ones(2) * size)


def sets() -> None:
    """Sets with a joined rank go on as well. The join does not affect other sets."""
    size, rank = hvd.size(), hvd.rank()
    if size < 3:
        return
    pair, rest = hvd.add_process_set([0, 1]), hvd.add_process_set(range(1, size))

    def calls() -> None:
        for name in (None, "set"):
            if pair.included():
                found = hvd.allreduce(torch.ones(3), name=name, process_set=pair)
                assert torch.equal(found, torch.full((3,), 0.5)), found
                hvd.barrier(pair)
            found = hvd.allreduce(torch.full((3,), rank), name=name, op=hvd.Sum, process_set=rest)
            assert torch.equal(found, torch.full((3,), sum(range(1, size))))
            gathered = hvd.allgather(torch.full((1,), rank), name=name, process_set=rest)
            assert gathered.tolist() == list(range(1, size))

    others_go_on(0, calls)
    for each in (pair, rest):
        if each.included():
            hvd.allreduce(torch.ones(3), name="set", process_set=each)
        assert hvd.remove_process_set(each)


def forgotten_handles() -> None:
    """join() ends operations that a second init() has forgotten, as nobody can synchronize them."""
    size, rank = hvd.size(), hvd.rank()
    ones = torch.ones(4)
    for name in ("forgotten", "forgotten in one"):
        hvd.allreduce_async(ones, name=name)
        hvd.broadcast_async(ones, 0, name=f"{name}, of one")
        hvd.allgather_async(ones, name=f"{name}, gathered")
    hvd.barrier()  # The forgotten operations are over.
    if rank == 0:
        hvd.allreduce_async(ones, name="under way", op=hvd.Sum)
    hvd.allreduce_async(torch.ones(2 + rank), name="disagreed")
    hvd.allreduce_async(torch.ones(77))
    hvd.init()

    def calls() -> None:
        for wanted in (size, size - 1):
            found = hvd.allreduce(ones, name="under way", op=hvd.Sum)
            assert torch.equal(found, ones * wanted), (found, wanted)
        assert torch.allclose(hvd.allreduce(torch.ones(77)), torch.full((77,), (size - 1) / size))
        found = hvd.allreduce(ones, name="forgotten", op=hvd.Average)
        assert torch.allclose(found, ones * (size - 1) / size), found
        who = "has joined"
        expect(
            hvd.HorovodInternalError, who, hvd.broadcast, ones, 0, name="forgotten in one, of one"
        )

    others_go_on(0, calls)
    # Each of these waits for the other ranks, which have joined.
    hvd.allreduce_async(ones, name=f"of rank {rank}")
    hvd.init()
    hvd.join()
    for other in range(size):
        found = hvd.allreduce(ones * rank, name=f"of rank {other}", op=hvd.Sum)
        assert torch.equal(found, ones * sum(range(size))), found


def many_names() -> None:
    """To end many open names costs one round of each."""
    names = [f"many.{place}" for place in range(200)]
    for handle in [hvd.allreduce_async(torch.ones(3), name=name) for name in names]:
        hvd.synchronize(handle)
    client, begun = _client.current(), 0
    tensors = {each.tensor for each in client.tensors.all() if "many." in each.name}
    assert len(tensors) == len(names), client.tensors.all()
    push = client.connection.push_parts

    def counted(tensor: int, *given: Any) -> int:
        nonlocal begun
        begun += tensor in tensors
        return push(tensor, *given)

    with mock.patch.object(client.connection, "push_parts", counted):
        hvd.join()
    # A rank that hears of a round just before it hears that all have joined begins another one.
    assert len(names) <= begun < 1.2 * len(names), begun


def bad_use() -> None:
    handle = hvd.allreduce_async(torch.ones(3), name="open")
    expect(ValueError, "not synchronized", hvd.join)
    hvd.synchronize(handle)
    if hvd.size() == 1:
        assert hvd.join() == 0
        return

    checked, end = Path(sys.argv[1]), time.monotonic() + 60
    if hvd.rank() == 0:
        told: list[int] = []
        thread = threading.Thread(target=lambda: told.append(hvd.join()))
        thread.start()
        while not _joining.is_serving() and time.monotonic() < end:
            time.sleep(0.001)
        expect(ValueError, "another thread", hvd.join)
        expect(ValueError, "another thread", hvd.allreduce, torch.ones(1))
        checked.touch()  # The others join after this.
        thread.join()
        assert told[0] > 0, told
        return
    while not checked.exists() and time.monotonic() < end:
        hvd.barrier()
    hvd.join()


CASES = [
    reductions,
    orders,
    told_before,
    one_after_another,
    sparse,
    sparse_that_is_dealt,
    others_raise,
    disagreements,
    sets,
    forgotten_handles,
    many_names,
    bad_use,
]


def main() -> int:
    torch.set_num_threads(1)
    expect(hvd.HorovodInternalError, "has not been initialized", hvd.join)
    hvd.init(process_sets="dynamic")
    run_cases(*(CASES if hvd.size() > 1 else [bad_use]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
