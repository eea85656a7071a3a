# SPDX-License-Identifier: Apache-2.0
"""Talweg for PyTorch 2.1 and newer.

    import talweg.torch as tw

    tw.init()
    optimizer = tw.DistributedOptimizer(optimizer, model.named_parameters())
    tw.broadcast_parameters(model.state_dict(), root_rank=0)

The rest of a single-process program stays as it is. There is no compiled extension: the library
gets the addresses of tensors.
"""

from __future__ import annotations

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import torch as _torch  # noqa: F401

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
from talweg.torch._asynchronous import AsynchronousOptimizer
from talweg.torch._broadcasts import (
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_broadcast,
    grouped_broadcast_,
    grouped_broadcast_async,
    grouped_broadcast_async_,
    grouped_push_pull,
    grouped_push_pull_async,
    grouped_push_pull_async_inplace,
    grouped_push_pull_inplace,
)
from talweg.torch._collectives import COLLECTIVES as _calls
from talweg.torch._ddp import ddp_hook
from talweg.torch._elastic import Elastic
from talweg.torch._loader import ElasticLoader
from talweg.torch._local_sgd import DiLoCo, LocalSGD
from talweg.torch._monitored_barrier import monitored_barrier
from talweg.torch._optimizer import DistributedOptimizer
from talweg.torch._sparse import push_pull_sparse, push_pull_sparse_async
from talweg.torch._state import broadcast_optimizer_state, broadcast_parameters
from talweg.torch._tensors import (
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)
from talweg.torch._uncompiled import leave_calls_uncompiled as _leave_calls_uncompiled

_register()

all_gather = _calls.all_gather
all_gather_async = _calls.all_gather_async
all_gather_into = _calls.all_gather_into
all_gather_into_async = _calls.all_gather_into_async
all_gather_survivors = _calls.all_gather_survivors
all_gather_survivors_async = _calls.all_gather_survivors_async
all_to_all = _calls.all_to_all
all_to_all_async = _calls.all_to_all_async
gather = _calls.gather
gather_async = _calls.gather_async
grouped_all_gather = _calls.grouped_all_gather
grouped_all_gather_async = _calls.grouped_all_gather_async
grouped_all_gather_into = _calls.grouped_all_gather_into
grouped_all_gather_into_async = _calls.grouped_all_gather_into_async
grouped_all_gather_survivors = _calls.grouped_all_gather_survivors
grouped_all_gather_survivors_async = _calls.grouped_all_gather_survivors_async
grouped_all_to_all = _calls.grouped_all_to_all
grouped_all_to_all_async = _calls.grouped_all_to_all_async
grouped_gather = _calls.grouped_gather
grouped_gather_async = _calls.grouped_gather_async
grouped_reduce = _calls.grouped_reduce
grouped_reduce_async = _calls.grouped_reduce_async
grouped_reduce_scatter = _calls.grouped_reduce_scatter
grouped_reduce_scatter_async = _calls.grouped_reduce_scatter_async
grouped_scatter = _calls.grouped_scatter
grouped_scatter_async = _calls.grouped_scatter_async
recv = _calls.recv
recv_async = _calls.recv_async
reduce = _calls.reduce
reduce_async = _calls.reduce_async
reduce_scatter = _calls.reduce_scatter
reduce_scatter_async = _calls.reduce_scatter_async
scatter = _calls.scatter
scatter_async = _calls.scatter_async
send = _calls.send
send_async = _calls.send_async

__all__ = [
    "AsynchronousOptimizer",
    "DiLoCo",
    "DistributedOptimizer",
    "Elastic",
    "ElasticLoader",
    "Handle",
    "LocalSGD",
    "Op",
    "ProcessSet",
    "TalwegError",
    "all_gather",
    "all_gather_async",
    "all_gather_into",
    "all_gather_into_async",
    "all_gather_object",
    "all_gather_survivors",
    "all_gather_survivors_async",
    "all_to_all",
    "all_to_all_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "declare",
    "gather",
    "gather_async",
    "grouped_all_gather",
    "grouped_all_gather_async",
    "grouped_all_gather_into",
    "grouped_all_gather_into_async",
    "grouped_all_gather_survivors",
    "grouped_all_gather_survivors_async",
    "grouped_all_to_all",
    "grouped_all_to_all_async",
    "grouped_broadcast",
    "grouped_broadcast_",
    "grouped_broadcast_async",
    "grouped_broadcast_async_",
    "grouped_gather",
    "grouped_gather_async",
    "grouped_push_pull",
    "grouped_push_pull_async",
    "grouped_push_pull_async_inplace",
    "grouped_push_pull_inplace",
    "grouped_reduce",
    "grouped_reduce_async",
    "grouped_reduce_scatter",
    "grouped_reduce_scatter_async",
    "grouped_scatter",
    "grouped_scatter_async",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "monitored_barrier",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "push_pull_sparse",
    "push_pull_sparse_async",
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

# These return the same values as long as the job runs.
_leave_calls_uncompiled(globals(), "local_rank", "local_size", "rank", "size")
