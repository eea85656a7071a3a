# SPDX-License-Identifier: Apache-2.0
"""Checks sends and receives of torch.distributed with many tags, in any order."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import talweg
import talweg.torch
import torch
import torch.distributed as dist
from expected_errors import expect
from talweg import _client

# Short messages go in the control round. Longer ones go after it, in one round or several.
_LENGTHS = (0, 1, 500, 1024, 1025, 20_000, 300_000)
_SECONDS = timedelta(seconds=120)


def _message(sender: int, tag: int, number: int, length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float32) + (1000 * sender + 10 * tag + number)


def _wait(works: Iterable[Any]) -> None:
    for work in works:
        work.wait(_SECONDS)


def check_that_tags_cost_nothing(rank: int) -> None:
    """After a thousand tags neither the job nor this process has more memory than after a few."""
    client = _client.current()
    buffer, long = torch.zeros(3), torch.zeros(2000)
    sizes: list[tuple[int, int]] = []
    tracemalloc.start()
    for tag in range(1001):
        if rank == 0:
            dist.send(buffer, 1, tag=tag)
            dist.send(long, 1, tag=9000 + tag)
            dist.recv(buffer, 1, tag=tag)
        elif rank == 1:
            # The long message comes too early, and the short one is received from any source.
            dist.recv(buffer, None if tag % 2 else 0, tag=tag)
            dist.recv(long, 0, tag=9000 + tag)
            dist.send(buffer, 0, tag=tag)
        if tag in (200, 1000):
            gc.collect()
            sizes.append((client.tensor_count, tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    (tensors, before), (last_tensors, after) = sizes
    # Long messages use two tensors in turn, for each of the two ways that they may take.
    assert last_tensors <= tensors + 4, sizes
    # 800 tags that were kept would take at least a hundred bytes each.
    assert after - before < 50_000, sizes


def check_tags_in_any_order(rank: int, size: int) -> None:
    """Each rank sends to each rank. Messages of one pair and one tag come in their order."""
    same, own = random.Random(5), random.Random(rank)
    for repeat in range(6):
        messages = []
        for sender in range(size):
            for receiver in range(size):
                for number in range(20 if sender != receiver else 0):
                    messages.append((sender, receiver, same.randrange(6), number))
        lengths = {each: same.choice(_LENGTHS) for each in messages}
        sends = [each for each in messages if each[0] == rank]
        receives = [each for each in messages if each[1] == rank]
        # Messages of a tag are received in the order of the sends, but tags in any order.
        order = list(range(len(receives)))
        own.shuffle(order)
        by_tag: dict[tuple[int, int], list[Any]] = {}
        for each in receives:
            by_tag.setdefault((each[0], each[2]), []).append(each)
        receives = [by_tag[receives[at][0], receives[at][2]].pop(0) for at in order]
        works: list[Any] = []
        got: list[Any] = []
        while sends or receives:
            # Receives come first, sends come first, or both are mixed.
            if sends and (not receives or own.random() < (0.1, 0.9, 0.5)[repeat % 3]):
                sender, receiver, tag, number = message = sends.pop(0)
                tensor = _message(sender, tag, number, lengths[message])
                works.append(dist.isend(tensor, receiver, tag=tag))
            else:
                message = receives.pop(0)
                tensor = torch.full((lengths[message],), -1.0)
                works.append(dist.irecv(tensor, message[0], tag=message[2]))
                got.append((message, tensor, works[-1]))
            if repeat >= 3 and own.random() < 0.3:
                own.choice(works).is_completed()
        own.shuffle(works)
        _wait(works)
        for (sender, _, tag, number), tensor, work in got:
            wanted = _message(sender, tag, number, tensor.numel())
            assert torch.equal(tensor, wanted), (rank, sender, tag, number)
            assert work.source_rank() == sender
        dist.barrier()


def check_from_any_source_with_tags(rank: int, size: int) -> None:
    """There are receives from any source beside receives from one rank. Each message comes once."""
    each, length = 10, 3000  # The number of messages of each of four tags, and their length.
    if rank > 0:
        # Receives from any source may take all messages of one rank.
        count = 4 * each * (2 if rank == 1 else 1)
        _wait(
            dist.isend(_message(rank, number % 4, number, length), 0, tag=number % 4)
            for number in range(count)
        )
        return
    kinds: list[tuple[int | None, int]] = []
    kinds += [(None, tag) for tag in range(4)] * each
    kinds += [(1, tag) for tag in range(4)] * each
    random.Random(7).shuffle(kinds)
    kinds += [(None, tag) for tag in range(4)] * (each * (size - 2))
    works = []
    for source, tag in kinds:
        tensor = torch.zeros(length)
        works.append((source, tag, dist.irecv(tensor, source, tag=tag), tensor))
    last: dict[tuple[int, int], float] = {}
    seen = set()
    for source, tag, work, tensor in works:
        work.wait(_SECONDS)
        first = float(tensor[0])
        sender = work.source_rank()
        assert source in (None, sender) and sender == int(first) // 1000
        assert torch.equal(tensor, torch.arange(length, dtype=torch.float32) + first)
        assert first not in seen
        seen.add(first)
        # Messages of a rank come in the order of its sends.
        assert last.get((sender, tag), -1.0) < first, (sender, tag)
        last[sender, tag] = first
    assert len(seen) == len(kinds)


def check_many_outstanding(rank: int) -> None:
    """More messages than a receiver names at once are received in the opposite order."""
    count = 1500
    lengths = [3 if tag % 10 else 1500 for tag in range(count)]
    if rank == 0:
        sends = [dist.isend(torch.full((n,), float(t)), 1, tag=t) for t, n in enumerate(lengths)]
        _wait(sends)
    elif rank == 1:
        tensors = [torch.zeros(length) for length in lengths]
        _wait([dist.irecv(tensors[tag], 0, tag=tag) for tag in reversed(range(count))])
        assert all(bool((tensor == tag).all()) for tag, tensor in enumerate(tensors))


def check_progress_that_nobody_waits_for(rank: int) -> None:
    """A receive goes on while its rank waits for another call that depends on it."""
    for length in (3, 5000):
        tensor, other, flag = torch.zeros(length), torch.zeros(length), torch.zeros(1)
        if rank == 0:
            first = dist.isend(tensor + 1, 1, tag=1)
            dist.send(tensor + 2, 1, tag=2)  # It returns, although nobody wants its message yet.
            dist.send(flag, 1, tag=3)
            first.wait(_SECONDS)
        elif rank == 1:
            second = dist.irecv(other, 0, tag=2)
            dist.recv(flag, 0, tag=3)
            dist.recv(tensor, 0, tag=1)
            second.wait(_SECONDS)
            assert bool((tensor == 1).all()) and bool((other == 2).all())


def check_lengths_that_differ(rank: int) -> None:
    """The receiver always gets the error. The sender gets it if it gives data after that."""
    words = r"make it as long as what is sent"
    for length in (3, 5000):
        tensor, ok = torch.ones(length), torch.ones(2)
        if rank == 0:
            work = dist.isend(tensor, 1, tag=1)
            dist.send(ok, 1, tag=2)  # The receiver takes it after the first message.
            if length == 5000:
                expect(talweg.Mismatch, "calls send of f32[5000]", work.wait)
            else:
                work.wait()
        elif rank == 1:
            dist.recv(ok, 0, tag=2)
            if length == 5000:
                words = "but rank 1 calls recv of f32[5001]"
            expect(talweg.Mismatch, words, dist.recv, torch.ones(length + 1), 0, tag=1)
        # The error does not affect the next messages.
        if rank == 0:
            dist.send(tensor, 1, tag=1)
        elif rank == 1:
            tensor.zero_()
            dist.recv(tensor, 0, tag=1)
            assert bool((tensor == 1).all())


def check_time_limits(rank: int) -> None:
    """A receive that is late is named, and can be waited for again."""
    tensor = torch.zeros(3)
    if rank == 1:
        work = dist.irecv(tensor, 0, tag=9)
        told = ""
        end = time.monotonic() + _SECONDS.total_seconds()
        # Nodes learn of other nodes' ranks after a second.
        while "it still waits for rank 0" not in told:
            assert time.monotonic() < end, told
            try:
                work.wait(timedelta(seconds=0.1))
            except talweg.Timeout as error:
                told = str(error)
        assert told.startswith("rank 1: recv from rank 0 of float32[3]: timeout after 0.1"), told
        assert not work.is_completed()
        dist.send(tensor, 0, tag=1)
        work.wait(_SECONDS)
        assert tensor.tolist() == [5.0] * 3
    elif rank == 0:
        dist.recv(tensor, 1, tag=1)
        dist.send(torch.full((3,), 5.0), 1, tag=9)


def check_that_nothing_keeps_tensors(rank: int) -> None:
    """A message that has ended, and that nobody holds, is freed without a search for cycles."""
    gc.collect()
    gc.disable()
    for length in (3, 5000):
        for is_early in (False, True):
            tensor, flag = torch.zeros(length), torch.zeros(1)
            kept = weakref.ref(tensor)
            if rank == 0:
                work = dist.isend(tensor, 1, tag=1)
                dist.send(flag, 1, tag=2)
                work.wait(_SECONDS)
                del work
            elif rank == 1:
                if is_early:
                    dist.recv(flag, 0, tag=2)
                    dist.recv(tensor, 0, tag=1)
                else:
                    dist.recv(tensor, 0, tag=1)
                    dist.recv(flag, 0, tag=2)
            del tensor
            end = time.monotonic() + _SECONDS.total_seconds()
            while kept() is not None:  # Another thread may still be letting it go.
                assert time.monotonic() < end, f"{length} are kept"
    gc.enable()


def check_futures(rank: int) -> None:
    for length in (3, 5000):
        tensor = torch.full((length,), float(rank))
        if rank == 0:
            future = dist.isend(tensor, 1, tag=4).get_future()
            assert future.wait()[0] is tensor
        elif rank == 1:
            received = dist.irecv(tensor, 0, tag=4).get_future()
            doubled = received.then(lambda each: each.value()[0] + 2)
            assert doubled.wait().tolist() == [2.0] * length


def main() -> None:
    dist.init_process_group("talweg", timeout=_SECONDS)
    rank, size = dist.get_rank(), dist.get_world_size()
    checks: list[Callable[[], None]] = [
        partial(check_that_tags_cost_nothing, rank),
        partial(check_tags_in_any_order, rank, size),
        partial(check_from_any_source_with_tags, rank, size),
        partial(check_many_outstanding, rank),
        partial(check_progress_that_nobody_waits_for, rank),
        partial(check_lengths_that_differ, rank),
        partial(check_time_limits, rank),
        partial(check_that_nothing_keeps_tensors, rank),
        partial(check_futures, rank),
    ]
    for check in checks:
        check()
        dist.barrier()  # A receive from any source would take what the next check sends.
    talweg.shutdown()


if __name__ == "__main__":
    main()
