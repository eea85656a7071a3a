# SPDX-License-Identifier: Apache-2.0
"""Horovod's reduction of sparse torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from talweg.horovod.common import basics
from talweg.horovod.common.basics import Average, Sum
from talweg.horovod.common.names import named
from talweg.horovod.common.process_sets import ProcessSet, global_process_set
from talweg.horovod.torch import _starts
from talweg.horovod.torch._handles import add, synchronize


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Any]:
    """Starts the reduction. Returns a function that waits and returns the sparse sum or average,
    which has each row once.
    """
    if op not in (Average, Sum):
        raise NotImplementedError(
            "sparse_allreduce_async: only hvd.Average and hvd.Sum of sparse tensors"
        )
    own = named("sparse_allreduce", name)
    rule = basics.op_of(op, None, "sparse_allreduce")
    handle = add(lambda: _starts.reduce_sparse(tensor, own, rule, process_set))
    return lambda: synchronize(handle)
