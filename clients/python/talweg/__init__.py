# SPDX-License-Identifier: Apache-2.0
"""Talweg: gradient aggregation for data-parallel training, on NumPy arrays.

    import numpy as np
    import talweg

    talweg.init()
    total = talweg.push_pull(np.full(4, talweg.rank(), np.float32), op=talweg.Op.SUM, name="x")

A *round* of a tensor is one push_pull of it by every rank of the job. Ranks may push tensors in
any order; every rank pushes every tensor the same number of times. talweg.torch offers the same
for PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from talweg import _at_exit, _client
from talweg._client import Handle
from talweg._collectives import objects
from talweg._collectives.numpy_calls import COLLECTIVES as _calls
from talweg._collectives.numpy_rounds import (
    broadcast,
    broadcast_async,
    grouped_broadcast,
    grouped_broadcast_async,
    grouped_push_pull,
    grouped_push_pull_async,
    grouped_push_pull_async_inplace,
    grouped_push_pull_inplace,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from talweg._collectives.numpy_sparse import push_pull_sparse, push_pull_sparse_async
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.sparse_rows import SparseRows
from talweg._declaration import DType, Op
from talweg._declaring import declare, declare_in_place
from talweg._elastic.membership import membership_of
from talweg._elastic.outlive import rejoin
from talweg._elastic.sampler import ElasticSampler
from talweg._elastic.state import State
from talweg._elastic.views import Change, Member
from talweg._version import __version__
from talweg.errors import (
    Aborted,
    AgentLost,
    Busy,
    Closed,
    Forked,
    GpuError,
    InternalError,
    InvalidArgument,
    JobFailed,
    LimitReached,
    Mismatch,
    NoAgent,
    NotInitialized,
    NotSynchronized,
    OutOfMemory,
    PermissionDenied,
    ProtocolError,
    RankTaken,
    TalwegError,
    Timeout,
    Unsupported,
    VersionMismatch,
    WrongType,
)

__all__ = [
    "Aborted",
    "AgentLost",
    "Busy",
    "Change",
    "Closed",
    "DType",
    "ElasticSampler",
    "Forked",
    "GpuError",
    "Handle",
    "InternalError",
    "InvalidArgument",
    "JobFailed",
    "LimitReached",
    "Member",
    "Mismatch",
    "NoAgent",
    "NotInitialized",
    "NotSynchronized",
    "Op",
    "OutOfMemory",
    "PermissionDenied",
    "ProcessSet",
    "ProtocolError",
    "RankTaken",
    "SparseRows",
    "State",
    "TalwegError",
    "Timeout",
    "Unsupported",
    "VersionMismatch",
    "WrongType",
    "__version__",
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
    "broadcast_async",
    "broadcast_object",
    "declare",
    "declare_in_place",
    "end_step",
    "enter",
    "epoch",
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
    "grouped_broadcast_async",
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
    "is_joiner",
    "local_rank",
    "local_size",
    "members",
    "on_view_change",
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
    "rejoin",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "shutdown",
    "size",
    "synchronize",
]


def init(agent_socket: str | None = None, timeout_s: float = 60.0) -> None:
    """Joins the job through this node's agent. A second call does nothing.

    `agent_socket` is the agent's socket. The default is $TALWEG_AGENT_SOCKET, which `talweg run`
    sets. Without either, under torchrun, mpirun or srun, init() starts the node's agent and
    whatever else the job needs; all of it ends with the job (docs/launching.md). A program that no
    launcher has started is a job of one rank, which needs no agent. Returns when the job runs.
    Raises NoAgent if there is no agent, and Timeout if the job is not complete within `timeout_s`
    seconds. A forked child is no rank until it calls init() itself: until then rank() and size()
    return its parent's, and calls raise Forked. It then takes a free rank: its parent keeps its
    own.
    """
    _client.connect(agent_socket, timeout_s)
    _at_exit.register(shutdown)


def shutdown() -> None:
    """Leaves the job cleanly; also called when the interpreter ends. A second call does nothing.

    If init() has started this node's agent, the node's last rank returns when the job is over.
    An init() or rejoin() that waits, on another thread or below a signal handler, raises Closed.
    """
    _client.disconnect()


def is_initialized() -> bool:
    """Whether this process has called init(), and has not called shutdown() after it."""
    return _client.is_connected()


def rank() -> int:
    """This process's rank in the job: 0 to size() - 1, counted over the nodes in order.

    When nodes come or go, rank() and size() keep their values until the end of a step: see
    end_step().
    """
    return _client.current().rank


def size() -> int:
    """The number of ranks in the job."""
    return _client.current().size


def local_rank() -> int:
    """This process's rank on its node: 0 to local_size() - 1."""
    return _client.current().local_rank


def local_size() -> int:
    """The number of ranks on this node."""
    return _client.current().local_size


def epoch() -> int:
    """The membership's number. It grows with every change that this program has been told of.

    Before the first change it is 0 without an agent, or if nodes were lost while this rank came.
    """
    return membership_of(_client.current()).view.epoch


def members() -> tuple[Member, ...]:
    """The nodes in the job at the last end_step(), with the numbers of the ranks on each node.

    If nodes were lost while this rank came, its own number is another one until its first
    end_step().
    """
    return membership_of(_client.current()).view.members


def is_joiner() -> bool:
    """Whether this rank has entered a running job, and has not got the others' state yet.

    Until it has the state (State.begin(), or enter()), all that it pushes raises NotSynchronized.
    """
    return membership_of(_client.current()).is_joiner


def enter() -> None:
    """Enters a running job without a State. Does nothing if this rank is no joiner.

    For a program that transfers the others' state in its own way, for instance by a broadcast from
    a rank that the Change has both before and after. The joiner does so after this call, the others
    in a callback of on_view_change().
    """
    membership_of(_client.current()).enter()


def end_step() -> Change | None:
    """Ends a step. If nodes may come and go, they do so here and nowhere else.

    Every rank calls it equally often, after it has synchronized all that it has pushed. rank(),
    size(), members() and epoch() take their new values here, and on_view_change()'s callbacks run.
    Returns how the membership has changed, or None. A program that has a State calls
    State.end_step() instead. A program that calls neither lets no node in.
    """
    return membership_of(_client.current()).end_step()


def on_view_change(callback: Callable[[Change], Any]) -> None:
    """Makes end_step() call `callback` after a change, when the joiners have their State."""
    membership_of(_client.current()).callbacks.append(callback)


def pushed_bytes() -> int:
    """Bytes of tensors that this process has pushed since init(). As many come back as results."""
    return _client.current().pushed_bytes


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


def poll(handle: Handle) -> bool:
    """Whether synchronize(handle) would return without waiting."""
    return _client.current().poll(handle)


def synchronize(handle: Handle, timeout_s: float | None = None) -> Any:
    """Waits for a round and returns its result.

    Without `timeout_s` it waits as long as the job lives. The agent's log names a rank that is
    late; a dead rank raises JobFailed at once. After Timeout the round stays open, and the contents
    of the result's array are undefined.
    """
    return _client.current().synchronize(handle, timeout_s)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    *,
    process_set: ProcessSet | None = None,
) -> Any:
    """Returns the root's object on every rank. Objects are pickled: only for ranks you trust."""
    own, call = objects.broadcast_name(name, root_rank), objects.broadcast_call(name)
    return objects.broadcast_object(_client.current(), obj, root_rank, own, process_set, call)


def all_gather_object(
    obj: Any, name: str | None = None, *, process_set: ProcessSet | None = None
) -> list[Any]:
    """Returns all ranks' objects, in rank order. Objects are pickled: only for ranks you trust.

    Raises Aborted if a rank has left a job that goes on without it.
    """
    own, call = objects.gather_name(name), objects.gather_call(name)
    return objects.all_gather_object(_client.current(), obj, own, process_set, call=call)


def barrier(process_set: ProcessSet | None = None, *, timeout_s: float | None = None) -> None:
    """Returns when every rank that is left in the job, or in `process_set`, has called it.

    Only one thread of a rank may call it at a time. After Ctrl-C or Timeout the next call waits for
    the same barrier.
    """
    client = _client.current()
    group = Group(client, process_set, "barrier")
    client.barrier(group.listed, group.suffix, timeout_s)
