# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed that makes collective calls as ./bench orders (control.h).

    collectives.py talweg|gloo [RANK SIZE STORE]

"dtype" is the call: ar, ag, rs, a2a, or ars, which is all_reduces that are all under way at once.
"bytes" is the larger of a rank's input and result: the result of an all_gather, the input of other
calls. Elements are f32.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import torch
from control import Control, Order
from torch import distributed as dist

_Call = Callable[[torch.Tensor, torch.Tensor], object]  # Returns a Work if it is under way.

# Whether output and input have the whole size, and not one rank's part of it; the call.
_CALLS: dict[str, tuple[bool, bool, _Call]] = {
    "ar": (True, True, lambda output, tensor: dist.all_reduce(output)),
    "ag": (True, False, dist.all_gather_into_tensor),
    "rs": (False, True, dist.reduce_scatter_tensor),
    "a2a": (True, True, dist.all_to_all_single),
    "ars": (True, True, lambda output, tensor: dist.all_reduce(output, async_op=True)),
}


def _expected(call: str, rank: int, size: int, part: int) -> float:
    """Returns the value in a part of a rank's result, if rank r gives r + 1 everywhere."""
    if call in ("ar", "ars", "rs"):
        return size * (size + 1) / 2
    return part + 1


def main() -> int:
    manner, place = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Newer versions of torch warn of renamed calls.
    if manner == "talweg":
        import talweg.torch

        dist.init_process_group("talweg")  # It finds its place by the variables of `talweg run`.
    else:
        rank, size = int(place[0]), int(place[1])
        dist.init_process_group(manner, f"file://{place[2]}", rank=rank, world_size=size)
    rank, size = dist.get_rank(), dist.get_world_size()
    now: list[tuple[_Call, torch.Tensor, torch.Tensor]] = []

    def run_round() -> None:
        for work in [call(output, tensor) for call, output, tensor in now]:
            if isinstance(work, dist.Work):
                work.wait()

    def prepare(order: Order) -> None:
        """Makes new tensors, and checks the result of one round."""
        now.clear()
        for nbytes in order.sizes:
            whole = nbytes // 4 // size * size
            large_output, large_input, call = _CALLS[order.dtype]
            tensor = torch.full((whole if large_input else whole // size,), rank + 1.0)
            output = torch.full((whole if large_output else whole // size,), rank + 1.0)
            now.append((call, output, tensor))
        run_round()
        for _, output, _ in now:
            parts = output.chunk(size if len(output) >= size else 1)
            for part, got in enumerate(parts):
                if (got != _expected(order.dtype, rank, size, part)).any():
                    raise ValueError(f"part {part} of {order.dtype} is wrong")
            output.fill_(0)  # Repeated sums would soon overflow.

    Control(rank).serve(prepare, run_round)
    dist.destroy_process_group()
    if manner == "talweg":
        talweg.torch.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
