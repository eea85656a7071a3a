# SPDX-License-Identifier: Apache-2.0
"""Rank 0 receives from any source while the others leave one after the other.

A receive that is open when a rank leaves does not fail, because other ranks may still send.
"""

from __future__ import annotations

import datetime

import talweg.torch
import torch
import torch.distributed as dist


def _receive(length: int) -> int:
    tensor = torch.zeros(length)
    source: int = dist.recv(tensor)
    assert tensor.tolist() == [float(source)] * length, (source, tensor)
    return source


def main() -> None:
    dist.init_process_group("talweg", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, size - 1])
    if rank == 0:
        sources = [_receive(3) for _ in range(size - 1)]
        assert sorted(sources) == list(range(1, size)), sources
        # Two receives of another length are open at once. Only the last rank is there to send.
        tensors = torch.zeros(5), torch.zeros(5)
        works = [dist.irecv(tensor) for tensor in tensors]
        dist.send(torch.zeros(1), size - 1)
        for work, tensor in zip(works, tensors):
            work.wait()
            assert tensor.tolist() == [float(size - 1)] * 5
        dist.barrier(pair)  # The ranks that are left still work together.
        for _ in range(2):  # Once before this rank has heard of the loss, and once after that.
            try:
                _receive(3)
                raise AssertionError("nobody is left to send")
            except (talweg.JobFailed, talweg.Aborted) as error:
                print("nobody is left:", error)
    else:
        dist.send(torch.full((3,), float(rank)), 0)
        if rank == size - 1:
            dist.recv(torch.zeros(1), 0)
            for _ in range(2):
                dist.send(torch.full((5,), float(rank)), 0)
            dist.barrier(pair)
    talweg.shutdown()


if __name__ == "__main__":
    main()
