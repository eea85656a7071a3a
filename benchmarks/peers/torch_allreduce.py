# SPDX-License-Identifier: Apache-2.0
"""One rank that all-reduces torch's tensors on its device as ./bench orders (see control.h).

torch_allreduce.py talweg|gloo|nccl [RANK SIZE STORE]
"""

from __future__ import annotations

import sys

import torch
from control import Control, Order
from device import Device
from torch import distributed

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def main() -> int:
    manner, place = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    if manner == "talweg":
        import talweg.torch as tw

        tw.init()
        rank, size, device = tw.rank(), tw.size(), Device(tw.local_rank())

        def reduce(tensor: torch.Tensor, name: str) -> None:
            tw.push_pull_inplace(tensor, op=tw.Op.SUM, name=name)

        end = tw.shutdown
    else:
        rank, size = int(place[0]), int(place[1])
        device = Device(rank)
        distributed.init_process_group(manner, f"file://{place[2]}", rank=rank, world_size=size)

        def reduce(tensor: torch.Tensor, name: str) -> None:
            distributed.all_reduce(tensor)

        end = distributed.destroy_process_group
    tensors: dict[str, torch.Tensor] = {}

    def run_round() -> None:
        for name, tensor in tensors.items():
            reduce(tensor, name)
        device.finish()

    def prepare(order: Order) -> None:
        """Makes new tensors, and checks the result of one round."""
        dtype = _DTYPES[order.dtype]
        tensors.clear()
        for index, nbytes in enumerate(order.sizes):
            count = nbytes // dtype.itemsize
            name = f"bench.{order.dtype}.{count}.{index}"
            tensors[name] = torch.full((count,), rank + 1.0, dtype=dtype, device=device.torch)
        run_round()
        for tensor in tensors.values():
            if (tensor != size * (size + 1) / 2).any():
                raise ValueError("a sum is wrong")
            tensor.fill_(0)  # Repeated sums would soon overflow.

    Control(rank).serve(prepare, run_round)
    end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
