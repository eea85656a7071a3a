# SPDX-License-Identifier: Apache-2.0
"""Horovod's reduction of sparse torch tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch

from talweg.horovod.common.basics import Average, Sum
from talweg.horovod.common.names import named
from talweg.horovod.common.process_sets import ProcessSet, global_process_set
from talweg.horovod.torch import _starts
from talweg.horovod.torch._handles import add, synchronize
from talweg.torch import _sparse


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts two allgathers, of indices and values. Returns a function that waits and returns the
    sparse sum or average.
    """
    if op not in (Average, Sum):
        raise NotImplementedError(
            "sparse_allreduce_async: only hvd.Average and hvd.Sum of sparse tensors"
        )

    def gather(rows: torch.Tensor, what: str) -> int:
        own = named("allgather", f"{name}.{what}")
        return add(lambda: _starts.gather(rows, own, process_set, "sparse_allreduce", of_some=True))

    own_indices, own_values = _sparse.rows_of(tensor)
    indices, values = gather(own_indices, "indices"), gather(own_values, "values")

    def wait() -> torch.Tensor:
        all_indices, all_values = synchronize(indices), synchronize(values)
        if op == Average:
            all_values = all_values / (process_set.size() or 1)
        return _sparse.of_rows(all_indices, all_values, tensor.size())

    return wait
