# SPDX-License-Identifier: Apache-2.0
"""Checks rounds whose end a descriptor tells, as event loops and completion threads use it."""

from __future__ import annotations

import asyncio
import sys
import threading

import numpy as np
import talweg
from talweg import _client
from talweg._declaration import Declaration, DType, Op


def _threads() -> int:
    return sum(thread.name == "talweg-completions" for thread in threading.enumerate())


def _tensors(client: _client.Client, count: int, name: str) -> list[int]:
    declaration = Declaration(DType.F32, 1000, Op.SUM, 0)
    return [client.tensors.declare(f"{name}.{i}", declaration).tensor for i in range(count)]


async def _event_loop(client: _client.Client) -> None:
    """A program has only an event loop."""
    connection, loop = client.connection, asyncio.get_running_loop()
    tensors = _tensors(client, 20, "loop")
    waiting: dict[int, asyncio.Future[None]] = {}

    fd = connection.completion_fd()

    def told() -> None:
        for tag in connection.completed(fd):
            waiting.pop(tag).set_result(None)

    loop.add_reader(fd, told)

    async def push_pull(index: int, round_: int) -> None:
        mine: np.ndarray = np.full(1000, index + round_, np.float32)
        out = np.empty_like(mine)
        pushed = connection.push_pull(tensors[index], mine.ctypes.data, 0)
        future = waiting[index] = loop.create_future()
        connection.watch(fd, tensors[index], pushed, index)
        await future
        connection.wait(tensors[index], pushed, out.ctypes.data, 0.0)  # The round is over already.
        assert (out == (index + round_) * talweg.size()).all()

    for round_ in range(20):
        order = range(20) if talweg.rank() % 2 else reversed(range(20))
        await asyncio.gather(*(push_pull(index, round_) for index in order))
    loop.remove_reader(fd)


def _completion_threads(client: _client.Client) -> None:
    """Each round's call is made once. Some calls may watch, others may block."""
    connection, completions = client.connection, client.completions
    assert _threads() == 0
    tensors = _tensors(client, 30, "threads")
    left = threading.Semaphore(0)
    outs: np.ndarray = np.zeros((30, 1000), np.float32)

    def push(index: int, round_: int) -> None:
        mine: np.ndarray = np.full(1000, round_, np.float32)
        pushed = connection.push_pull(tensors[index], mine.ctypes.data, 0)
        assert completions.watch(tensors[index], pushed, lambda: take(index, pushed))

    def take(index: int, round_: int) -> None:
        connection.wait(tensors[index], round_, outs[index].ctypes.data, 0.0)
        if round_ < 10:
            push(index, round_ + 1)
        left.release()

    for index in range(30):
        push(index, 1)
    for _ in range(300):
        assert left.acquire(timeout=120)
    assert (outs == 10 * talweg.size()).all()
    assert _threads() == 1, _threads()

    # A call that may block waits for another call.
    last = threading.Event()

    def first_told() -> None:
        connection.wait(tensors[0], 11, 0, 0.0)
        completions.call(lambda: left.release() if last.wait(120) else None)

    def second_told() -> None:
        connection.wait(tensors[1], 11, 0, 0.0)
        last.set()

    one: np.ndarray = np.ones(1000, np.float32)
    for index, told in ((0, first_told), (1, second_told)):
        pushed = connection.push_pull(tensors[index], one.ctypes.data, 0)
        assert completions.watch(tensors[index], pushed, told)
    assert left.acquire(timeout=120)
    assert _threads() == 2, _threads()


def _collectives_go_on_by_themselves() -> None:
    """Async calls of several rounds end even if a rank's threads do not wait for them."""
    rank, n = talweg.rank(), talweg.size()
    handle = talweg.all_gather_async(np.full((rank + 1, 5000), rank))
    talweg.barrier()
    if rank == 0:
        assert talweg.synchronize(handle).shape == (n * (n + 1) // 2, 5000)
    talweg.barrier()  # The others wait only after the first rank has its result.
    if rank != 0:
        assert talweg.synchronize(handle).shape == (n * (n + 1) // 2, 5000)
    # Many calls that nobody waits for are carried on in their order.
    handles = [talweg.reduce_scatter_async(np.full(n * 10, float(i))) for i in range(50)]
    while not talweg.poll(handles[-1]):
        pass
    for i, each in enumerate(handles):
        assert (talweg.synchronize(each) == i).all()


def main() -> None:
    talweg.init()
    client = _client.current()
    for _ in range(5):
        talweg.all_gather(np.ones(3))
        talweg.reduce_scatter(np.ones((talweg.size(), 3)))
    assert _threads() == 0, "a call that is waited for needs no thread"
    if sys.argv[1] == "loop":
        asyncio.run(_event_loop(client))
        assert _threads() == 0
    else:
        _completion_threads(client)
        _collectives_go_on_by_themselves()
    talweg.shutdown()


if __name__ == "__main__":
    main()
