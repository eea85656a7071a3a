# SPDX-License-Identifier: Apache-2.0
"""A rank of torch.distributed that names the backend, and nothing else of Talweg.

backend.py             started by a launcher
backend.py spawn N     starts N ranks itself, as torch.multiprocessing does
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

# An installed wheel's entry point does this; the tree's package has none.
import talweg.torch  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing


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


def main() -> None:
    if sys.argv[1:2] != ["spawn"]:
        _train()
        return
    size = int(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_train, (size, port), size)


if __name__ == "__main__":
    main()
