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
    ProcessSet,
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
from talweg._torch_backend import register as _register
from talweg.errors import TalwegError
from talweg.torch._collectives import COLLECTIVES as _collectives
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

_register()

all_gather = _collectives.all_gather
all_gather_async = _collectives.all_gather_async
all_gather_into = _collectives.all_gather_into
all_gather_into_async = _collectives.all_gather_into_async
all_to_all = _collectives.all_to_all
all_to_all_async = _collectives.all_to_all_async
gather = _collectives.gather
gather_async = _collectives.gather_async
grouped_all_gather = _collectives.grouped_all_gather
grouped_all_gather_async = _collectives.grouped_all_gather_async
grouped_all_to_all = _collectives.grouped_all_to_all
grouped_all_to_all_async = _collectives.grouped_all_to_all_async
grouped_reduce_scatter = _collectives.grouped_reduce_scatter
grouped_reduce_scatter_async = _collectives.grouped_reduce_scatter_async
recv = _collectives.recv
recv_async = _collectives.recv_async
reduce = _collectives.reduce
reduce_async = _collectives.reduce_async
reduce_scatter = _collectives.reduce_scatter
reduce_scatter_async = _collectives.reduce_scatter_async
scatter = _collectives.scatter
scatter_async = _collectives.scatter_async
send = _collectives.send
send_async = _collectives.send_async

__all__ = [
    "DistributedOptimizer",
    "Handle",
    "Op",
    "ProcessSet",
    "TalwegError",
    "all_gather",
    "all_gather_async",
    "all_gather_into",
    "all_gather_into_async",
    "all_gather_object",
    "all_to_all",
    "all_to_all_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "declare",
    "gather",
    "gather_async",
    "grouped_all_gather",
    "grouped_all_gather_async",
    "grouped_all_to_all",
    "grouped_all_to_all_async",
    "grouped_reduce_scatter",
    "grouped_reduce_scatter_async",
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
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reduce_scatter",
    "reduce_scatter_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "shutdown",
    "size",
    "synchronize",
]
