# SPDX-License-Identifier: Apache-2.0
"""A rank of torch.distributed over Talweg that makes three steps, and a fourth when it is told.

A step has many calls under way at once, each in its own group. The rank prints how each one ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import talweg.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# It is longer than the part of a copy that one round carries.
_LONG = 3000


def _calls() -> dict[str, Callable[[], None]]:
    """Returns calls that wait, so each needs a thread."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(300, 300), process_group=dist.new_group())
    names = ("small", "long", "future", "gather", "exchange", "receive", "barrier", "objects")
    groups = {name: dist.new_group() for name in names}

    def receive() -> None:
        """All other ranks receive from rank 1."""
        if rank == 1:
            for other in range(size):
                if other != 1:
                    dist.send(torch.ones(5), other, group=groups["receive"])
        else:
            dist.recv(torch.zeros(5), 1, group=groups["receive"])

    return {
        "backward": lambda: model(torch.ones(2, 300)).sum().backward(),
        "small": lambda: dist.all_reduce(torch.ones(5), group=groups["small"]),
        "long": lambda: dist.all_reduce(torch.ones(_LONG * 100), group=groups["long"]),
        "future": lambda: (
            dist.all_reduce(torch.ones(5), group=groups["future"], async_op=True)
            .get_future()
            .wait()
        ),
        "gather": lambda: dist.all_gather_into_tensor(
            torch.zeros(size * _LONG), torch.ones(_LONG), group=groups["gather"]
        ),
        "exchange": lambda: dist.all_to_all_single(
            torch.zeros(size * _LONG), torch.ones(size * _LONG), group=groups["exchange"]
        ),
        "receive": receive,
        "barrier": lambda: dist.barrier(groups["barrier"]),
        "objects": lambda: dist.all_gather_object(
            [None] * size, "x" * _LONG, group=groups["objects"]
        ),
    }


def _step(calls: dict[str, Callable[[], None]]) -> None:
    ends = dict.fromkeys(calls, "")

    def make(name: str) -> None:
        try:
            calls[name]()
            ends[name] = "well"
        except BaseException as error:
            ends[name] = f"{type(error).__name__}: {error}".replace("\n", " ")

    threads = [threading.Thread(target=make, args=[name]) for name in calls]
    for thread in threads:
        thread.start()
    print("begun", flush=True)
    for thread in threads:
        thread.join()
    for name, end in ends.items():
        print(f"{name} ends {end}", flush=True)


def main() -> None:
    talweg.init()
    store = dist.HashStore()  # Talweg does not use it.
    dist.init_process_group("talweg", store=store, rank=talweg.rank(), world_size=talweg.size())
    calls = _calls()
    for step in range(1, 4):
        _step(calls)
        print(f"step {step} of rank {dist.get_rank()}", flush=True)
    for _ in sys.stdin:
        _step(calls)


if __name__ == "__main__":
    main()
