# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed with Gloo that all-reduces as ./bench orders (see control.h)."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Order:
    """What the harness wants measured."""

    dtype: torch.dtype
    warm_up_rounds: int
    rounds: int
    tensor_bytes: list[int]


class Control:
    """The worker's side of the harness's lines."""

    def __init__(self, rank: int) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ["TALWEG_BENCH_CONTROL"])
        self._file = connection.makefile("rw")
        self.say(f"hello {os.environ['TALWEG_BENCH_CONTENDER']} {rank} {os.getpid()}")

    def say(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()

    def line(self) -> str:
        line = self._file.readline().strip()
        return "" if line == "quit" else line

    def orders(self) -> Iterator[Order]:
        while words := self.line().split():
            _, dtype, warm_up, rounds, sizes = words
            yield Order(
                DTYPES[dtype], int(warm_up), int(rounds), [int(size) for size in sizes.split(",")]
            )


def reduce_all(tensors: list[torch.Tensor]) -> None:
    if len(tensors) == 1:
        distributed.all_reduce(tensors[0])
        return
    works = [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()


def make_tensors(order: Order, rank: int, size: int) -> list[torch.Tensor]:
    """New tensors, after one round that is known to be right."""
    width = order.dtype.itemsize
    tensors = [
        torch.full((count // width,), rank + 1, dtype=order.dtype) for count in order.tensor_bytes
    ]
    reduce_all(tensors)
    expected = size * (size + 1) / 2
    for tensor in tensors:
        for place in (0, tensor.numel() // 2, -1):
            if tensor[place].item() != expected:
                raise ValueError(f"the sum is {tensor[place].item()}, not {expected}")
        tensor.fill_(1)  # Sums of sums soon overflow; that costs the same time.
    return tensors


def measure(control: Control, order: Order, tensors: list[torch.Tensor]) -> bool:
    """Whether there may be another order."""
    for _ in range(order.warm_up_rounds):
        reduce_all(tensors)
    control.say("ready")
    if not control.line():
        return False
    times_ns = [time.monotonic_ns()]
    for _ in range(order.rounds):
        reduce_all(tensors)
        times_ns.append(time.monotonic_ns())
    rounds_ns = ",".join(str(end - begin) for begin, end in zip(times_ns, times_ns[1:]))
    control.say(f"done {times_ns[0]} {times_ns[-1]} {rounds_ns}")
    return True


def main() -> int:
    rank, size, store = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )
    control = Control(rank)
    try:
        previous, tensors = None, []
        for order in control.orders():
            if order != previous:
                previous, tensors = order, make_tensors(order, rank, size)
            if not measure(control, order, tensors):
                break
    except Exception as error:
        control.say(f"failed {type(error).__name__}: {str(error).splitlines()[0][:300]}")
        raise
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
