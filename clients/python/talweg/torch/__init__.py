# SPDX-License-Identifier: Apache-2.0
"""Talweg for PyTorch 2.1 and newer.

    import talweg.torch as tw

    tw.init()
    optimizer = tw.DistributedOptimizer(optimizer, model.named_parameters())
    tw.broadcast_parameters(model.state_dict(), root_rank=0)

Everything else of a single-process program stays as it is. No compiled extension: tensors are
handed over by their addresses.
"""

from __future__ import annotations

from talweg import (
    Handle,
    Op,
    all_gather_object,
    barrier,
    broadcast_object,
    init,
    is_initialized,
    local_rank,
    local_size,
    pushed_bytes,
    rank,
    shutdown,
    size,
)
from talweg.errors import TalwegError
from talweg.torch._ddp import ddp_hook
from talweg.torch._optimizer import DistributedOptimizer
from talweg.torch._state import broadcast_optimizer_state, broadcast_parameters
from talweg.torch._tensors import (
    broadcast,
    broadcast_,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)

__all__ = [
    "DistributedOptimizer",
    "Handle",
    "Op",
    "TalwegError",
    "all_gather_object",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "declare",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "pushed_bytes",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
