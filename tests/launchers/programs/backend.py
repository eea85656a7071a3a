# SPDX-License-Identifier: Apache-2.0
"""A rank of torch.distributed that uses nothing of Talweg except the name of the backend.

backend.py             started by a launcher
backend.py spawn N     starts N ranks itself, as torch.multiprocessing does
backend.py renumbered DIRECTORY
                       is started by torchrun; ranks swap their numbers in a second group
backend.py worlds DIRECTORY PROCESS
                       is one of 3 processes, which make process groups of different ranks in turn
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

# The entry point of an installed wheel does this. The package in the tree has none.
import talweg.torch  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing
from talweg import _client


def _train(rank: int = -1, size: int = -1, port: int = 0) -> None:
    place: dict[str, Any] = {}
    if port:
        place = {"rank": rank, "world_size": size, "init_method": f"tcp://127.0.0.1:{port}"}
    dist.init_process_group("talweg", **place)
    total = torch.full((5,), float(dist.get_rank()))
    dist.all_reduce(total)
    size = dist.get_world_size()
    assert total.tolist() == [size * (size - 1) / 2] * 5, total
    dist.barrier()
    os.write(1, f"rank {dist.get_rank()} of {size}: sum is right\n".encode())
    dist.destroy_process_group()


def _require_sum(group: Any = None) -> None:
    total = torch.full((5,), float(dist.get_rank() + 1))
    dist.all_reduce(total, group=group)
    size = dist.get_world_size()
    assert total.tolist() == [size * (size + 1) / 2] * 5, total


def _world(store: str, members: Sequence[int], process: int, backend: str = "talweg") -> None:
    """Makes a process group. `members` are its processes, by rank. `store` is a file for it."""
    if process not in members:
        return
    rank, size = members.index(process), len(members)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    if backend == "talweg":
        _require_sum()
    else:
        for _ in range(2):
            _require_sum(dist.new_group(list(range(size)), backend="talweg"))
    dist.barrier()
    dist.destroy_process_group()


def _worlds(process: int, directory: str) -> None:
    names = itertools.count()

    def world(members: Sequence[int], backend: str = "talweg") -> None:
        _world(f"{directory}/{next(names)}", members, process, backend)

    world([0, 1, 2])
    client = _client.current()
    world([0, 1, 2])
    assert client is _client.current()  # The rank stays in its job.
    world([2, 1, 0])
    world([0, 1])
    world([0, 1, 2])
    world([1, 2])
    world([0])
    world([2, 0])
    world([1])
    world([0, 1, 2], "gloo")
    world([1, 2, 0], "gloo")
    world([0, 1, 2])
    world([0, 2, 1], "gloo")
    os.write(1, f"process {process}: sums are right\n".encode())


def main() -> None:
    if sys.argv[1:2] == ["worlds"]:
        _worlds(int(sys.argv[3]), sys.argv[2])
        return
    if sys.argv[1:2] == ["renumbered"]:
        process = int(os.environ["RANK"])
        _train()
        _world(f"{sys.argv[2]}/store", [0, 2, 1], process)
        os.write(1, f"process {process}: sums are right\n".encode())
        return
    if sys.argv[1:2] != ["spawn"]:
        _train()
        return
    size = int(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_train, (size, port), size)


if __name__ == "__main__":
    main()
