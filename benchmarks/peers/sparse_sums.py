# SPDX-License-Identifier: Apache-2.0
"""One rank that sums the sparse gradient of an embedding as ./bench orders (control.h).

    sparse_sums.py sparse|dense|gloo [RANK SIZE STORE]

In an order "dtype" is the distribution of the rows that a rank gives, and "bytes" how many it draws.
`zipf` draws row k with a probability in proportion to k^-1.1, as words of a text come. `uniform`
draws all rows alike. A row that is drawn again counts once. `sparse` calls push_pull_sparse(),
`dense` push_pull() of the whole tensor, and `gloo` torch's all_reduce of the COO tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from control import Control, Order
from torch import distributed

_ROWS, _WIDTH = 200_000, 64
_ZIPF = 1.1


def _gradient(order: Order, rank: int) -> torch.Tensor:
    rng = np.random.default_rng(rank)
    if order.dtype == "zipf":
        weights = np.arange(1, _ROWS + 1) ** -_ZIPF
        drawn = rng.choice(_ROWS, order.sizes[0], p=weights / weights.sum())
    else:
        drawn = rng.integers(0, _ROWS, order.sizes[0])
    indices = torch.from_numpy(np.unique(drawn))[None]
    values = torch.from_numpy(rng.standard_normal((indices.shape[1], _WIDTH)).astype(np.float32))
    size = (_ROWS, _WIDTH)
    return torch.sparse_coo_tensor(indices, values, size, check_invariants=True).coalesce()


def _over_talweg(manner: str) -> tuple[int, Callable[[torch.Tensor], Callable[[], object]]]:
    import talweg.torch as tw

    tw.init()

    def prepared(gradient: torch.Tensor) -> Callable[[], object]:
        if manner == "sparse":
            return lambda: tw.push_pull_sparse(gradient, "sparse")
        dense = gradient.to_dense()
        return lambda: tw.push_pull_inplace(dense, "dense")

    return tw.rank(), prepared


def _over_gloo(place: list[str]) -> tuple[int, Callable[[torch.Tensor], Callable[[], object]]]:
    rank, size = int(place[0]), int(place[1])
    distributed.init_process_group("gloo", f"file://{place[2]}", rank=rank, world_size=size)

    def prepared(gradient: torch.Tensor) -> Callable[[], object]:
        # The call replaces the tensor's rows by those of the sum, so each round takes another one.
        return lambda: distributed.all_reduce(gradient.clone())

    return rank, prepared


def main() -> int:
    manner, place = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    rank, prepared = _over_gloo(place) if manner == "gloo" else _over_talweg(manner)
    rounds: list[Callable[[], object]] = []

    def prepare(order: Order) -> None:
        rounds[:] = [prepared(_gradient(order, rank))]

    Control(rank).serve(prepare, lambda: rounds[0]())
    if manner == "gloo":
        distributed.destroy_process_group()
    else:
        import talweg

        talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
