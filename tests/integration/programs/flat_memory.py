# SPDX-License-Identifier: Apache-2.0
"""One rank of a job whose calls have changing shapes. No process of the job may grow.

The line is `flat_memory.py numpy|c10d CALLS`. Once there is a tensor of each length, further calls
make no tensor, and the rank and every daemon keep their memory.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import talweg
from talweg import _client

# What a process may grow by between the two looks at it: the memory allocators' freedom.
_GROWTH_BYTES_MAX = 4 << 20
_WIDTH_MAX = 200

_Call = Callable[[int, np.ndarray, int], None]


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _memory() -> dict[str, int]:
    """Returns what this rank and each of the job's daemons hold."""
    memory = {f"rank {talweg.rank()}": _resident_bytes(os.getpid())}
    for pid in os.environ["TALWEG_RUN_DAEMONS"].split(","):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        memory[f"{name} {pid}"] = _resident_bytes(int(pid))
    return memory


def _tensor_count() -> int:
    client = _client.current()
    return sum(len(channel._tensors) for channel in client.channels.values())


def numpy_call(call: int, rows: np.ndarray, width: int) -> None:
    rank, n = talweg.rank(), talweg.size()
    mine: np.ndarray = np.full((rows[rank], width), rank, np.uint8)
    if call % 3 == 0:
        assert talweg.all_gather(mine).shape == (rows.sum(), width)
    elif call % 3 == 1:
        splits = [int(rows[rank]), *[0] * (n - 1)]
        _, counts = talweg.all_to_all(mine, splits)
        assert counts == ([int(count) for count in rows] if rank == 0 else [0] * n)
    else:
        alike: np.ndarray = np.full((rows[0], width), 1, np.int32)
        assert (talweg.reduce_scatter(alike, op=talweg.Op.SUM) == n).all()


def c10d_call(call: int, rows: np.ndarray, width: int) -> None:
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    count = int(rows[0]) * width
    mine = torch.full((count,), rank + 1)
    if call % 4 == 0:
        dist.all_reduce(mine)
        assert (mine == n * (n + 1) // 2).all()
    elif call % 4 == 1:
        every = torch.empty(n * count, dtype=mine.dtype)
        dist.all_gather_into_tensor(every, mine)
        assert torch.equal(every.view(n, count)[:, :1], torch.arange(1, n + 1)[:, None][:, :count])
    elif call % 4 == 2:
        part = torch.empty(count)
        dist.reduce_scatter_tensor(part, torch.ones(n * count))
        assert (part == n).all()
    else:
        sent = [int(rows[rank]), *[0] * (n - 1)]
        taken = [int(each) for each in rows] if rank == 0 else [0] * n
        result = torch.empty(sum(taken), dtype=mine.dtype)
        dist.all_to_all_single(result, torch.full((sent[0],), rank), taken, sent)
        assert result.tolist() == np.repeat(np.arange(n), taken).tolist()


def _run(make_call: _Call, calls: int) -> None:
    n = talweg.size()
    rng = np.random.default_rng(7)
    tensors, before = 0, dict[str, int]()
    for call in range(calls):
        make_call(call, rng.integers(0, 40, n), int(rng.integers(1, _WIDTH_MAX)))
        if call == calls // 4:  # There is a tensor of each length by now.
            talweg.barrier()
            tensors, before = _tensor_count(), _memory()
    talweg.barrier()
    after = _memory()
    talweg.barrier()  # No rank or daemon ends before all have looked.
    grown = [f"{name} {before[name] >> 10} -> {after[name] >> 10} KiB" for name in after]
    print("flat:", *grown, flush=True)
    assert _tensor_count() == tensors > 0, (_tensor_count(), tensors)
    if os.environ.get("TALWEG_SANITIZER"):
        return  # A sanitizer keeps what is freed.
    for name, held in after.items():
        assert held <= before[name] + _GROWTH_BYTES_MAX, (name, before[name], held)


def main() -> int:
    how, calls = sys.argv[1], int(sys.argv[2])
    talweg.init()
    if how == "numpy":
        _run(numpy_call, calls)
        return 0
    import torch.distributed as dist

    importlib.import_module("talweg.torch")  # It makes the backend known.
    dist.init_process_group("talweg")
    _run(c10d_call, calls)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
