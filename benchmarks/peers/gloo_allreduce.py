# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed with Gloo that all-reduces as ./bench orders (see control.h)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from control import Control, Order
from torch import distributed

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def reduce_all(tensors: list[torch.Tensor]) -> None:
    if len(tensors) == 1:
        distributed.all_reduce(tensors[0])
        return
    works = [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()


def make_tensors(order: Order, rank: int, size: int) -> list[torch.Tensor]:
    """Returns new tensors, after it has checked the result of one round."""
    dtype = DTYPES[order.dtype]
    tensors = [
        torch.full((count // dtype.itemsize,), rank + 1, dtype=dtype) for count in order.sizes
    ]
    reduce_all(tensors)
    expected = size * (size + 1) / 2
    for tensor in tensors:
        for place in (0, tensor.numel() // 2, -1):
            if tensor[place].item() != expected:
                raise ValueError(f"the sum is {tensor[place].item()}, not {expected}")
        tensor.fill_(1)  # Repeated sums soon overflow, which takes the same time.
    return tensors


def main() -> int:
    rank, size, store = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )
    tensors: list[torch.Tensor] = []

    def prepare(order: Order) -> None:
        tensors[:] = make_tensors(order, rank, size)

    Control(rank).serve(prepare, lambda: reduce_all(tensors))
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
