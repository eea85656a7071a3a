# SPDX-License-Identifier: Apache-2.0
"""Checks what torch.distributed over Talweg has beyond Gloo, and the errors of what it refuses.

With the argument "disagreements" it checks only calls that do not fit together.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any
from unittest import mock

import talweg
import talweg.torch
import torch
import torch.distributed as dist
from c10d_disagreements import check_disagreements, check_small_calls_again, raises
from talweg.torch import _process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

_RANK, _SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def check_ranks() -> None:
    store = dist.HashStore()
    with raises(talweg.InvalidArgument, f"torch has rank {_RANK} of {_SIZE + 1}, but Talweg's job"):
        dist.init_process_group("talweg", store=store, rank=_RANK, world_size=_SIZE + 1)


def check_small_calls_of_late_ranks() -> None:
    """The library does not wait for late ranks. The thread that waits for a call carries it on."""
    from talweg._library import native_exchange

    slice_ns, native_exchange.WAIT_SLICE_NS = native_exchange.WAIT_SLICE_NS, 0
    try:
        for repeat in range(20):
            tensor = torch.full((5,), float(_RANK + repeat))
            dist.all_reduce(tensor)
            assert tensor.tolist() == [sum(range(_SIZE)) + float(repeat * _SIZE)] * 5, tensor
    finally:
        native_exchange.WAIT_SLICE_NS = slice_ns


def check_not_in_place() -> None:
    """Only the reducer's buckets are in place: torch cannot resize a tensor that it has moved."""
    tensor = torch.zeros(40_000)
    for count in (40_000, 40_000, 40_000, 50_000):
        tensor.resize_(count).fill_(1)
        dist.all_reduce(tensor, async_op=True).wait()
        assert tensor.tolist() == [_SIZE] * count
    assert dist.distributed_c10d._get_default_group()._channel.in_place._tensors == []


def check_in_place() -> None:
    """Tensors that are reduced repeatedly are summed where they lie, whatever others bring."""
    in_place = dist.distributed_c10d._get_default_group()._channel.in_place
    before = len(in_place._tensors)

    def check(tensor: torch.Tensor, repeat: int) -> None:
        tensor.copy_(torch.arange(len(tensor)) % 100 + (_RANK + repeat))
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        wanted = (torch.arange(len(tensor)) % 100 + repeat) * _SIZE + sum(range(_SIZE))
        assert torch.equal(tensor, wanted.float()), (repeat, tensor[:5], wanted[:5])

    own, other = torch.zeros(40_000), torch.zeros(40_000)
    large = torch.zeros(9 << 20)  # It needs several rounds if it is not in place.
    for repeat in range(5):
        check(own, repeat)
        check(large, repeat)
    assert len(in_place._tensors) == before + 2, len(in_place._tensors)
    for each, tensor in zip(in_place._tensors[before:], (own, large)):
        assert each.declared.buffer.is_attached_to(tensor.data_ptr())
    # If ranks bring other tensors, the data goes another way, and the in-place tensor is retired.
    for repeat in range(3):
        check(other if _RANK == 1 else own, repeat)
    for repeat in range(5):
        check(own, repeat)
        check(other, repeat)
    assert own.data_ptr() != other.data_ptr()
    # A call that does not fit leaves the tensor unchanged.
    own.fill_(7)
    with raises(talweg.Mismatch, r"rank 0 calls all_reduce sum of f32\[40000\], but rank 1 calls"):
        dist.all_reduce(torch.zeros(50_000) if _RANK == 1 else own)
    assert _RANK == 1 or own.tolist() == [7] * 40_000
    for repeat in range(3):
        check(own, repeat)
    # A rank that fails to get an in-place tensor that the ranks agree on says so in its next call.
    third = torch.zeros(60_000)
    count, failure = len(in_place._tensors), talweg.OutOfMemory("no memory")
    failing = mock.patch.object(in_place, "_declared", mock.Mock(side_effect=failure))
    for repeat in range(3):
        with failing if _RANK == 1 and repeat == 1 else contextlib.nullcontext():
            check(third, repeat)
    assert len(in_place._tensors) == count + 1, (len(in_place._tensors), count)
    for repeat in range(3):
        check(third, repeat)
    # When another tensor asks for one, those whose tensors nobody has give their memory back.
    there = [each for each in in_place._tensors[before:] if each.storage is not None]
    assert there
    del own, other, large, third, tensor, each, failing, failure
    gc.collect()  # The errors keep the frames that they came through.
    new = torch.zeros(70_000)
    for repeat in range(4):
        check(new, repeat)
    assert all(each.storage is None for each in there), len(there)


def check_timeout() -> None:
    group = dist.new_group([0, 1])
    if _RANK == 0:
        tensor = torch.ones(6)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        words = r"rank 0: all_reduce of float32\[6\].* timeout after 0\.05 s: "
        words += r"it still waits for rank 1 \(local rank 1 of node 0, pid \d+\)($|;)"
        with raises(talweg.Timeout, words):
            work.wait(timedelta(seconds=0.05))
        assert not work.is_completed()
    dist.barrier()
    if _RANK == 1:
        tensor = torch.ones(6)
        work = dist.all_reduce(tensor, group=group, async_op=True)
    if _RANK < 2:
        work.wait()  # The call was open all the time.
        assert work.is_success() and tensor.tolist() == [2] * 6
        dist.barrier(group, timeout=timedelta(seconds=60))
    if _RANK == 0:
        with raises(talweg.Timeout, "rank 0: barrier in the process group of ranks"):
            dist.barrier(group, timeout=timedelta(seconds=0.05))
    dist.barrier()
    if _RANK == 1:
        dist.barrier(group)


def check_where_late_ranks_wait() -> None:
    """A timeout says in which call a late rank waits, and where both are made."""
    group = dist.new_group([0, 1])
    world: Any = dist.group.WORLD
    told, line = world._store, r"\(?\S*c10d_errors.py:\d+\)?"

    def await_told(rank: int, call: bytes) -> None:
        told.wait([f"talweg/waits/{rank}"])
        while not told.get(f"talweg/waits/{rank}").startswith(call):
            pass

    who = (
        r"it still waits for rank 1 \(local rank 1 of node 0, pid \d+\); meanwhile rank 1 waits in "
    )
    if _RANK == 0:
        await_told(1, b"recv")
        work = dist.all_reduce(torch.ones(6), group=group, async_op=True)
        words = rf"{who}recv from rank 0 of float32\[3\] {line}, and this call is made at {line}$"
        with raises(talweg.Timeout, words):
            work.wait(timedelta(seconds=0.05))
        dist.send(torch.ones(3), 1)
        work.wait()
        dist.all_reduce(torch.ones(6), group=group)
    elif _RANK == 1:
        dist.recv(torch.ones(3), 0)
        dist.all_reduce(torch.ones(6), group=group)
        await_told(0, b"all_reduce of float32[6] in")
        words = (
            rf"; meanwhile rank 0 waits in all_reduce of float32\[6\] .*{line}, and this .* {line}$"
        )
        with raises(talweg.Timeout, words):
            dist.irecv(torch.ones(3), 0, tag=9).wait(timedelta(seconds=0.05))
        dist.all_reduce(torch.ones(6), group=group)
    if _RANK == 0:
        dist.send(torch.ones(3), 1, tag=9)
    dist.barrier()
    while _RANK == 1 and told.get("talweg/waits/1"):  # It has gone on since then.
        pass


def check_timeout_of_futures() -> None:
    """Waits for futures end, too: waits of the program, for messages, and of a backward pass."""
    sums, messages = dist.new_group(), dist.new_group()
    model = DistributedDataParallel(torch.nn.Linear(10, 10), process_group=dist.new_group())
    if _RANK == 0:
        for group in (sums, messages, model.process_group):
            group.set_timeout(timedelta(seconds=0.05))
        works = [dist.all_reduce(torch.ones(6), group=sums, async_op=True) for _ in range(2)]
        future = works[0].get_future()
        words = r"rank 0: all_reduce of float32\[6\].* timeout after 0\.05 s: it still waits for "
        words += r"rank 1 .*; the process group takes no more calls here: "
        with raises(talweg.Timeout, words):
            future.wait()
        # The future's owner may use the tensor, so nobody can wait for the group's calls any more.
        for call in (works[1].wait, lambda: dist.barrier(sums)):
            with raises(talweg.Timeout, words):
                call()
        with raises(talweg.Timeout, "rank 0: recv from rank 1 .* timeout after "):
            dist.irecv(torch.ones(3), 1, group=messages).get_future().wait()
        with raises(talweg.Timeout, r"rank 0: all_reduce of float32\[110\].* timeout after "):
            model(torch.ones(1, 10)).sum().backward()
        _STORE.set("late", "")
    else:
        _STORE.wait(["late"])
        # This completes the call that rank 0 has begun, so it is not open when ranks leave.
        dist.all_reduce(torch.ones(6), group=sums)
        if _RANK == 1:
            dist.send(torch.ones(3), 0, group=messages)
        model(torch.ones(1, 10)).sum().backward()
    dist.barrier()


class _Watched:
    """A work that only its group keeps. A thread that has just ended it may keep it a moment."""

    def __init__(self, work: dist.Work) -> None:
        self._is_gone = threading.Event()
        self.get = weakref.ref(work, lambda _: self._is_gone.set())

    def check_gone(self) -> None:
        end = time.monotonic() + 60
        while not self._is_gone.wait(0.05):
            gc.collect()
            assert time.monotonic() < end, gc.get_referrers(self.get())


def check_works_are_kept() -> None:
    """A group keeps a work until somebody waits for it or has its future, for torch before 2.7."""
    group = dist.new_group()
    group._all_calls.kept.all_are_wanted = True
    for use in (lambda work: work.wait(), lambda work: work.get_future().wait()):
        kept = _Watched(dist.all_reduce(torch.ones(3), group=group, async_op=True))
        gc.collect()
        assert kept.get() is not None
        use(kept.get())
        kept.check_gone()
    tensors = [torch.ones(3), torch.ones(4)]
    opts = dist.AllreduceCoalescedOptions()
    kept = _Watched(group.allreduce_coalesced(tensors, opts))
    for _ in tensors:  # Functional collectives wait once for each tensor.
        gc.collect()
        work = kept.get()
        assert work is not None
        work.wait()
        del work
    kept.check_gone()


def check_beyond_gloo() -> None:
    # These are averages, pre-multiplied sums, bools, and lists of different lengths.
    tensor = torch.full((3,), float(_RANK))
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.tolist() == [(_SIZE - 1) / 2] * 3
    for sign in (1, -1):
        numbers = torch.full((3,), sign * (2 * _RANK + 1) + _RANK // 2, dtype=torch.int64)
        total = sum(sign * (2 * rank + 1) + rank // 2 for rank in range(_SIZE))
        dist.all_reduce(numbers, dist.ReduceOp.AVG)
        assert numbers.tolist() == [int(total / _SIZE)] * 3, numbers
        part = torch.zeros(1, dtype=torch.int32)
        dist.reduce_scatter_tensor(
            part, torch.full((_SIZE,), sign * 7 * _RANK).int(), dist.ReduceOp.AVG
        )
        assert part.item() == int(sign * 7 * sum(range(_SIZE)) / _SIZE), part
    tensor = torch.full((3,), 2.0)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    assert tensor.tolist() == [float(_SIZE)] * 3
    for op, wanted in (
        (dist.ReduceOp.SUM, [True, True, False]),
        (dist.ReduceOp.PRODUCT, [True, False, False]),
    ):
        bools = torch.tensor([True, _RANK == 0, False])
        dist.all_reduce(bools, op)
        assert bools.tolist() == wanted, (op, bools)
    outputs = [torch.zeros(2 * rank) for rank in range(_SIZE)]
    dist.all_gather(outputs, torch.full((2 * _RANK,), float(_RANK)))
    assert [output.tolist() for output in outputs] == [[rank] * 2 * rank for rank in range(_SIZE)]
    every = torch.zeros(_SIZE, 5)
    dist.all_gather_into_tensor(every, torch.full((5,), float(_RANK)))
    assert every[:, 0].tolist() == list(range(_SIZE))
    pairs = [torch.zeros(2), torch.zeros(3000)]
    inputs = [torch.ones(2 * _SIZE), torch.ones(3000 * _SIZE)]
    with dist._coalescing_manager():
        for output, given in zip(pairs, inputs):
            dist.reduce_scatter_tensor(output, given)
    assert all(bool((output == _SIZE).all()) for output in pairs)
    for dtype in (torch.float32, torch.complex64):
        for wide in (1, 2000):
            # The part of rank 0 has no elements.
            parts = [torch.full((wide * rank,), _RANK + 1.0).to(dtype) for rank in range(_SIZE)]
            part = torch.zeros(wide * _RANK, dtype=dtype)
            dist.reduce_scatter(part, parts)
            assert bool((part == sum(range(1, _SIZE + 1))).all()), part
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    assert empty.numel() == 0
    received = [torch.zeros(2 * _RANK + 3000 * rank) for rank in range(_SIZE)]
    sent = [torch.full((2 * rank + 3000 * _RANK,), float(_RANK)) for rank in range(_SIZE)]
    dist.all_to_all(received, sent)
    assert all(bool((part == rank).all()) for rank, part in enumerate(received))
    for count in (2, 30_000):  # The call works in place.
        numbers, million = torch.arange(count * _SIZE).view(_SIZE, count), 1_000_000
        numbers += million * _RANK
        dist.all_to_all_single(numbers, numbers)
        wanted = torch.arange(count) + count * _RANK
        for rank in range(_SIZE):
            assert torch.equal(numbers[rank], wanted + million * rank), (rank, numbers)
    tensor = torch.ones(3)
    dist.group.WORLD.allreduce([tensor], dist.ReduceOp.MAX).wait()
    assert tensor.tolist() == [1] * 3
    half = torch.ones(9, dtype=torch.bfloat16)
    dist.all_reduce(half)
    assert half.tolist() == [_SIZE] * 9


def check_refused() -> None:
    with raises(talweg.Unsupported, "bit_and is not defined for f32"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with raises(talweg.InvalidArgument, "use tensor.to_dense"):
        dist.broadcast(torch.ones(3).to_sparse(), 0)
    with raises(talweg.Unsupported, "sparse tensors with max: only sums and averages"):
        dist.all_reduce(torch.ones(3).to_sparse(), dist.ReduceOp.MAX)
    both = "rank 0 calls all_reduce of sparse sum f32 rows of .3., but rank 1 calls .* of .4."
    with raises(talweg.Mismatch, both):
        dist.all_reduce(torch.ones(3 + _RANK).to_sparse())
    with raises(talweg.InvalidArgument, f"give {_SIZE}, one for each rank, of 1"):
        dist.all_gather_coalesced([[torch.ones(3)]], [torch.ones(3)])
    with raises(talweg.InvalidArgument, "takes tensors in host memory"):
        dist.all_reduce(torch.ones(3, device="meta"))
    sharded = distribute_tensor(torch.ones(6), init_device_mesh("cpu", (_SIZE,)), [Shard(0)])
    with raises(talweg.InvalidArgument, r"elements of this DTensor .* pass tensor.to_local"):
        dist.all_reduce(sharded)
    freed = torch.ones(6)
    freed.untyped_storage().resize_(0)
    for call in (dist.all_reduce, lambda tensor: dist.broadcast(tensor, 0)):
        with raises(talweg.InvalidArgument, r"this Tensor of shape \[6\] has no memory"):
            call(freed)
    with raises(talweg.InvalidArgument, "all_reduce: 2 tensors; give a list of one"):
        dist.group.WORLD.allreduce([torch.ones(3), torch.ones(3)])
    with raises(talweg.Unsupported, "max is not defined for complex"):
        dist.group.WORLD.allreduce([torch.ones(3) * 1j], dist.ReduceOp.MAX)
    with raises(talweg.InvalidArgument, f"of which part {_RANK} has the output's length"):
        dist.reduce_scatter(torch.ones(2), [torch.ones(3 + rank) for rank in range(_SIZE)])
    with raises(talweg.InvalidArgument, "give 3 parts"):
        dist.reduce_scatter(torch.ones(3), [torch.ones(3), torch.ones(3)])
    if hasattr(dist, "set_timeout"):  # Torch 2.14 and newer.
        dist.monitored_barrier()
    else:
        with raises(ValueError, "only implemented for GLOO"):
            dist.monitored_barrier()
    with raises(RuntimeError, "accelerator|device|split"):
        dist.split_group(split_ranks=[list(range(_SIZE))])
    with raises(talweg.Unsupported, r"make the smaller group with torch.distributed.new_group"):
        dist.group.WORLD.split_group([0, 1])
    with raises(talweg.Unsupported, "takes no further ranks"):
        dist.group.WORLD.merge_remote_group(dist.HashStore(), 1)
    if _RANK == 0:
        with raises(talweg.InvalidArgument, "rank 0 of the group is this one"):
            dist.isend(torch.zeros(3), 0)
    with raises(talweg.Mismatch, "but this rank expects"):
        # Each rank sends one row to the first rank and two to each other, and expects one from all.
        sent = [1] + [2] * (_SIZE - 1)
        output = torch.zeros(_SIZE + 1, 2)
        wanted = [2] + [1] * (_SIZE - 1)
        given = torch.zeros(sum(sent), 2)
        dist.all_to_all_single(output, given, wanted, sent)


def check_monitored_barrier() -> None:
    short, long = timedelta(seconds=0.3), timedelta(seconds=120)
    for _ in range(3):
        talweg.torch.monitored_barrier()
    # One rank is missing. The others hear from the first rank who it is, before their own limits.
    if _RANK == 2:
        _STORE.wait(["named.0", "named.1"])
        # This rank comes when no other one waits any more.
        with raises(talweg.Timeout, "monitored_barrier: rank 0 did not come within 0.3 s"):
            talweg.torch.monitored_barrier(timeout=short)
    else:
        with raises(RuntimeError, "monitored_barrier: rank 2 did not come within"):
            talweg.torch.monitored_barrier(None, long if _RANK else short)
        _STORE.set(f"named.{_RANK}", "")
    talweg.torch.monitored_barrier(timeout=long)
    # All ranks except the first one are missing.
    for number, (waits_for_all, who) in enumerate(
        [(False, "rank 1 did"), (True, "ranks 1, 2 did")]
    ):
        if _RANK == 0:
            with raises(talweg.Timeout, f"monitored_barrier: {who} not come within 0.3 s"):
                talweg.torch.monitored_barrier(timeout=short, wait_all_ranks=waits_for_all)
            _STORE.set(f"all.{number}", "")
        else:
            _STORE.wait([f"all.{number}"])
            with raises(talweg.Timeout, "rank 0 did not come"):
                talweg.torch.monitored_barrier(timeout=short)
        talweg.torch.monitored_barrier(timeout=long)
    # A group of some of the ranks names them by their numbers in the job.
    group = dist.new_group([1, 2])
    talweg.torch.monitored_barrier(group)
    if _RANK == 1:
        with raises(talweg.Timeout, "rank 2 did not come"):
            talweg.torch.monitored_barrier(group, short)
        _STORE.set("named.group", "")
    _STORE.wait(["named.group"])
    if _RANK == 2:
        with raises(talweg.Timeout, "rank 1 did not come"):
            talweg.torch.monitored_barrier(group, short)
    talweg.torch.monitored_barrier(group, long)
    with raises(talweg.InvalidArgument, "give a time above 0"):
        talweg.torch.monitored_barrier(timeout=timedelta(0))
    # For a group of another backend torch's own function is called.
    gloo = dist.new_group(backend="gloo")
    talweg.torch.monitored_barrier(gloo)
    dist.barrier()


def check_abort() -> None:
    """After abort() a rank's calls end, in each way of waiting for them."""
    group, other = dist.new_group(), dist.new_group()
    if _RANK == 0:
        works = [dist.all_reduce(torch.ones(5), group=group, async_op=True) for _ in range(3)]
        future = works[1].get_future()
        receive = dist.irecv(torch.ones(3), 1, group=group)
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                works[0].wait()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=wait)
        thread.start()
        group.abort()
        thread.join()
        words = "rank 0 has aborted the process group"
        assert [type(each) for each in failures] == [talweg.Aborted], failures
        for work in (*works, receive):
            with raises(talweg.Aborted, words):
                work.wait()
        with raises(RuntimeError, words):
            future.wait()
        for call in (dist.barrier, lambda group: dist.all_reduce(torch.ones(5), group=group)):
            with raises(talweg.Aborted, words):
                call(group)
        with raises(talweg.Aborted, words):
            dist.send(torch.ones(3), 1, group=group)
        _STORE.set("aborted", "")
    else:
        _STORE.wait(["aborted"])
        # This completes the call that rank 0 has begun, so it is not open when ranks leave.
        dist.all_reduce(torch.ones(5), group=group)
        if _RANK == 1:
            dist.send(torch.ones(3), 0, group=group)
    dist.destroy_process_group(group)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=other)  # Another group still works.
    assert tensor.tolist() == [_SIZE] * 3
    dist.distributed_c10d._abort_process_group()
    dist.init_process_group(
        "talweg", store=dist.PrefixStore("again", _STORE), rank=_RANK, world_size=_SIZE
    )
    dist.all_reduce(tensor)
    assert tensor.tolist() == [_SIZE**2] * 3


def check_what_splits() -> None:
    """Groups by enumeration do what torch's split_group does for other backends."""
    own, groups = dist.new_subgroups_by_enumeration([[2, 0], [1]])
    assert len(groups) == 2
    tensor = torch.tensor([float(_RANK)])
    dist.all_reduce(tensor, group=own)
    assert tensor.item() == {0: 2, 1: 1, 2: 2}[_RANK]


def check_devices() -> None:
    dist.destroy_process_group()
    for backends in ("cpu:talweg,cuda:gloo", "cuda:gloo,cpu:talweg"):
        dist.init_process_group(
            backends, store=dist.PrefixStore(backends, _STORE), rank=_RANK, world_size=_SIZE
        )
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [_SIZE] * 3
        group = dist.group.WORLD
        assert isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
        other = dist.new_group([0, 1])
        if _RANK < 2:
            assert isinstance(other._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
        dist.barrier()
        dist.destroy_process_group()
    with raises(talweg.Unsupported, "xpu:talweg"):
        dist.init_process_group("xpu:talweg", store=_STORE, rank=_RANK, world_size=_SIZE)


def check_threads() -> None:
    """Calls that are waited for need no thread. All futures share a few threads."""

    def threads() -> int:
        return sum(thread.name.startswith("talweg") for thread in threading.enumerate())

    # Longer gathers before this have started a thread.
    before = threads()
    tensors = [torch.ones(2000) for _ in range(8)]
    inner = dist.new_group()  # It is for calls that are made when a future is complete.
    for tensor in tensors:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
    assert threads() == before, (threads(), before)
    for _ in range(5):
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        # Chained callbacks may wait for calls, and for their futures.
        chained = [
            work.get_future().then(
                lambda future: (
                    dist.all_reduce(future.value()[0] * 0 + 1, group=inner, async_op=True)
                    .get_future()
                    .wait()[0]
                )
            )
            for work in works[:1]
        ]
        futures = [work.get_future() for work in works]
        for future in [*chained, *futures]:
            future.wait()
        assert chained[0].value().tolist() == [_SIZE] * 2000
    # One thread is told of ends. Others complete futures, at most as many as end at once, because
    # chained calls may block.
    assert 2 <= threads() <= max(before, len(tensors) + 2), (threads(), before)


if __name__ == "__main__":
    check_ranks()
    dist.init_process_group("talweg")  # It takes env://, whose variables `talweg run` sets.
    _STORE = dist.PrefixStore("later", dist.distributed_c10d._get_default_store())
    check_disagreements(_STORE)
    if "disagreements" not in sys.argv[1:]:
        check_small_calls_again()
        check_small_calls_of_late_ranks()
        check_not_in_place()
        with mock.patch.object(_process_group, "is_reducer", lambda: True):
            check_in_place()
        check_timeout()
        check_where_late_ranks_wait()
        check_timeout_of_futures()
        check_works_are_kept()
        check_threads()
        check_beyond_gloo()
        check_refused()
        check_monitored_barrier()
        check_what_splits()
        check_abort()
        check_devices()
    talweg.barrier()
