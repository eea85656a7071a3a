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

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from talweg import _at_exit, _client
from talweg._arguments import chosen_op, listed, takes_old_order
from talweg._client import Handle, group_of
from talweg._client.left_rounds import finish_call
from talweg._collectives import objects, rounds
from talweg._collectives.numpy_calls import COLLECTIVES as _calls
from talweg._collectives.numpy_calls import contiguous, real_pairs
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._declaration import Declaration, DType, Op, numpy_dtype
from talweg._declaring import declare, declare_in_place
from talweg._elastic.membership import membership_of
from talweg._elastic.outlive import rejoin
from talweg._elastic.sampler import ElasticSampler
from talweg._elastic.state import State
from talweg._elastic.views import Change, Member
from talweg._library.native_arguments import check_name_and_priority
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
    "grouped_all_to_all",
    "grouped_all_to_all_async",
    "grouped_push_pull",
    "grouped_push_pull_async",
    "grouped_reduce_scatter",
    "grouped_reduce_scatter_async",
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
    seconds. A forked child is no rank until it calls init() itself. It then takes a free rank: its
    parent keeps its own.
    """
    _client.connect(agent_socket, timeout_s)
    _at_exit.register(shutdown)


def shutdown() -> None:
    """Leaves the job cleanly; also called when the interpreter ends. A second call does nothing.

    If init() has started this node's agent, the node's last rank returns when the job is over.
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
all_to_all = _calls.all_to_all
all_to_all_async = _calls.all_to_all_async
gather = _calls.gather
gather_async = _calls.gather_async
grouped_all_gather = _calls.grouped_all_gather
grouped_all_gather_async = _calls.grouped_all_gather_async
grouped_all_to_all = _calls.grouped_all_to_all
grouped_all_to_all_async = _calls.grouped_all_to_all_async
grouped_reduce_scatter = _calls.grouped_reduce_scatter
grouped_reduce_scatter_async = _calls.grouped_reduce_scatter_async
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


_old_order = takes_old_order("op", "name", "priority", "timeout_s")


def _start(
    array: np.ndarray,
    out: np.ndarray,
    op: Op,
    name: str | None,
    priority: int,
    root_rank: int,
    process_set: ProcessSet | None,
    factors: Factors = NO_FACTORS,
    is_blocking: bool = False,
) -> Handle:
    client = _client.current()
    operation = "broadcast" if op is Op.BROADCAST else "push_pull"
    group = Group(client, process_set, operation)
    group.require_root(root_rank if op is Op.BROADCAST else group.ranks[0], operation)
    source = real_pairs(contiguous(array), op)
    dtype = numpy_dtype(source.dtype)
    factors.require(dtype, operation)
    return rounds.start(
        client,
        name,
        group,
        rounds.Brought(
            Declaration(dtype, source.size, op, root_rank, group.listed, source.shape),
            source.ctypes.data,
            out.ctypes.data,
            out,
            (source, out),
            priority,
            factors,
            stays=is_blocking or out is array,
            is_async=not is_blocking,
        ),
    )


@_old_order
def push_pull_async(
    array: np.ndarray,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Handle:
    """Starts a round of `array` and returns its handle. The array may be changed at once.

    Takes arrays of any shape: f32, f64, f16, integers of 8 to 64 bits with and without a sign, bool
    (min, max and bitwise), complex64 and complex128 (sum and average). `op` combines the ranks'
    elements. Without `op` they are averaged, or summed if `average` is False. There is no average
    of integers, no bitwise operation on floats, no sum, average or product of bools. Rounds with a
    larger `priority` overtake others. Rounds without a name are matched by the order of these
    calls, which must be the same at every rank; two are under way at once, so name tensors if you
    have many. A name is fastest if all its calls are alike. Only the ranks of `process_set` take
    part. `prescale_factor` multiplies what each rank gives, `postscale_factor` the result, both by
    talweg_scale() of talweg.h: 16-bit floats in float32, integers in float64, towards zero. Raises
    Busy if the name's last round has not been synchronized. If the ranks' calls do not fit
    together, this call or synchronize() raises Mismatch at every rank.
    """
    out = np.empty(array.shape, dtype=array.dtype) if isinstance(array, np.ndarray) else array
    factors = Factors(prescale_factor, postscale_factor)
    return _start(array, out, chosen_op(op, average), name, priority, 0, process_set, factors)


@_old_order
def push_pull(
    array: np.ndarray,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
) -> np.ndarray:
    """Runs push_pull_async() and synchronize(); returns a new array of the same shape."""
    client, operation = _client.current(), chosen_op(op, average)
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    out = np.empty(array.shape, dtype=array.dtype) if isinstance(array, np.ndarray) else array
    factors, waits = Factors(prescale_factor, postscale_factor), timeout_s is None
    handle = _start(array, out, operation, name, priority, 0, process_set, factors, waits)
    result: np.ndarray = finish_call(client, handle, left_s)
    return result


@_old_order
def push_pull_async_inplace(
    array: np.ndarray,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Handle:
    """Does the same as push_pull_async(), but synchronize() writes the result into `array`.

    `array` must be C-contiguous and writable. Do not read or write it before synchronize().
    """
    _require_writable(array, "an in-place push_pull")
    factors = Factors(prescale_factor, postscale_factor)
    return _start(array, array, chosen_op(op, average), name, priority, 0, process_set, factors)


@_old_order
def push_pull_inplace(
    array: np.ndarray,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
) -> np.ndarray:
    """Does the same as push_pull(), but writes the result into `array` and returns `array`."""
    client = _client.current()
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    handle = push_pull_async_inplace(
        array,
        name=name,
        op=op,
        average=average,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        priority=priority,
    )
    finish_call(client, handle, left_s)
    return array


def _require_writable(array: np.ndarray, operation: str) -> None:
    if not isinstance(array, np.ndarray):
        raise WrongType(
            f"{operation} writes its result into a numpy.ndarray, which {type(array).__name__} is "
            "not: pass numpy.array(...), and keep it"
        )
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{operation} writes its result into a C-contiguous array, which this one is not: pass "
            "numpy.ascontiguousarray(array), and keep that copy"
        )
    if not array.flags.writeable:
        raise InvalidArgument(
            f"{operation} writes its result into a writable array; this one is read-only: pass "
            "array.copy(), and keep it"
        )


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


def broadcast(
    array: np.ndarray,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> np.ndarray:
    """Makes every rank's `array` the root's, byte for byte, in place; returns `array`.

    `root_rank` is a rank of the job, also if `process_set` is given.
    """
    client = _client.current()
    rounds.before_call(client, name, process_set)
    finish_call(client, broadcast_async(array, root_rank, name, process_set))
    return array


def broadcast_async(
    array: np.ndarray,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle:
    """Starts broadcast(). Do not read or write the array before synchronize()."""
    _require_writable(array, "broadcast")
    return _start(array, array, Op.BROADCAST, name, 0, root_rank, process_set)


def _grouped(
    arrays: Sequence[np.ndarray],
    name: str | None,
    start: Callable[[np.ndarray, str | None], Handle],
) -> Handle:
    if name is not None:
        check_name_and_priority(name, 0)
    return group_of(
        _client.current(),
        [
            start(array, None if name is None else f"{name}.{index}")
            for index, array in enumerate(arrays)
        ],
    )


def grouped_push_pull_async(
    arrays: Iterable[np.ndarray], name: str | None = None, op: Op | None = None, **options: Any
) -> Handle:
    """Starts push_pull_async() of many arrays, with its options. Returns one handle for all.

    With a name the arrays are name.0, name.1 and so on.
    """
    every = listed(arrays, "grouped_push_pull")
    if name is not None and options.get("process_set") is None:
        # All arrays are declared at once: one by one, the first round of many takes seconds.
        declared_op = chosen_op(op, options.get("average", True))
        shown = [real_pairs(each, declared_op) for each in map(contiguous, every)]
        _client.current().tensors.settle(
            (
                f"{name}.{index}",
                Declaration(numpy_dtype(each.dtype), each.size, declared_op, 0, shape=each.shape),
                0,
            )
            for index, each in enumerate(shown)
        )
    return _grouped(every, name, lambda array, own: push_pull_async(array, own, op, **options))


def grouped_push_pull(
    arrays: Iterable[np.ndarray],
    name: str | None = None,
    op: Op | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Runs push_pull() of many arrays; returns a list of results."""
    client, every = _client.current(), listed(arrays, "grouped_push_pull")
    left_s = rounds.before_calls(client, name, len(every), options.get("process_set"), timeout_s)
    handle = grouped_push_pull_async(every, name, op, **options)
    results: list[np.ndarray] = finish_call(client, handle, left_s)
    return results


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    *,
    process_set: ProcessSet | None = None,
) -> Any:
    """Returns the root's object on every rank. Objects are pickled: only for ranks you trust."""
    own = objects.broadcast_name(name, root_rank)
    return objects.broadcast_object(_client.current(), obj, root_rank, own, process_set)


def all_gather_object(
    obj: Any, name: str | None = None, *, process_set: ProcessSet | None = None
) -> list[Any]:
    """Returns all ranks' objects, in rank order. Objects are pickled: only for ranks you trust.

    Raises Aborted if a rank has left a job that goes on without it.
    """
    own = objects.gather_name(name)
    return objects.all_gather_object(_client.current(), obj, own, process_set)


def barrier(process_set: ProcessSet | None = None) -> None:
    """Returns when every rank that is left in the job, or in `process_set`, has called it.

    Only one thread of a rank may call it at a time. After Ctrl-C the next call waits for the same
    barrier.
    """
    client = _client.current()
    group = Group(client, process_set, "barrier")
    client.barrier(group.listed, group.suffix)
