# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives of NDArrays, with Horovod's signatures.

Reductions and broadcasts return at once. Reading their results waits, and raises MXNetError if
ranks disagree. The other collectives wait for their results. Argument errors raise at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mxnet as mx
import numpy as np

import talweg
from talweg import _client
from talweg._arguments import factors_of, listed
from talweg._client.session import Pending, Several
from talweg._collectives.scaling import Factors
from talweg._compat.mxnet import collectives, rounds
from talweg._compat.mxnet.errors import internal
from talweg._compat.mxnet.rounds import Reduction
from talweg._declaration import Op
from talweg.errors import InvalidArgument
from talweg.horovod.common import basics, joining, surface
from talweg.horovod.common.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from talweg.horovod.common.names import group_names, named
from talweg.horovod.common.process_sets import ProcessSet, global_process_set, members_of
from talweg.horovod.common.surface import *  # noqa: F403

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]
__all__ += surface.__all__

_basics = basics  # Programs that know Horovod's own code use this name.


def _members(process_set: ProcessSet, operation: str) -> Any:
    _client.current()  # Raises NotInitialized before any other error.
    return members_of(process_set, operation)


def reduction_of(
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    operation: str,
) -> Reduction:
    """Returns what a call asks for; raises NotImplementedError for Adasum."""
    members = _members(process_set, operation)
    factors = Factors(*factors_of(prescale, postscale, operation))
    return Reduction(basics.op_of(op, None, operation), factors, members)


# ----- allreduce -----


def _reduce(
    tensors: Sequence[mx.nd.NDArray],
    names: Sequence[str | None],
    op: int | None,
    priority: int,
    pre: float,
    post: float,
    process_set: ProcessSet,
    in_place: bool,
    operation: str,
) -> list[mx.nd.NDArray]:
    def run() -> list[mx.nd.NDArray]:
        reduction = reduction_of(op, pre, post, process_set, operation)
        for tensor in tensors:  # All are checked before the first is pushed.
            rounds.check(tensor, operation)
        outs = [each if in_place else rounds.copy_of(each, operation) for each in tensors]
        for out, name in zip(outs, names):
            rounds.start(out, reduction, name, priority, operation, is_fresh=not in_place)
        return outs

    return internal(run)


def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Returns a new array with the reduction of `tensor` over all ranks. Reading it waits."""
    wanted = basics.resolve(op, average)
    [out] = _reduce(
        [tensor],
        [named("allreduce", name)],
        wanted,
        priority,
        prescale_factor,
        postscale_factor,
        process_set,
        False,
        "allreduce",
    )
    return out


def allreduce_(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Does the same as allreduce(), but in place; returns `tensor`."""
    wanted = basics.resolve(op, average)
    [out] = _reduce(
        [tensor],
        [named("allreduce", name)],
        wanted,
        priority,
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        "allreduce",
    )
    return out


def _grouped(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None,
    op: int | None,
    priority: int,
    pre: float,
    post: float,
    process_set: ProcessSet,
    in_place: bool,
) -> list[mx.nd.NDArray]:
    operation = "grouped_allreduce"
    tensors = listed(tensors, operation)
    if len({str(each.context) for each in tensors if isinstance(each, mx.nd.NDArray)}) > 1:
        raise InvalidArgument(f"{operation}: all tensors of a group must be on one device")
    names = group_names(name, operation, len(tensors))
    return _reduce(tensors, names, op, priority, pre, post, process_set, in_place, operation)


def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[mx.nd.NDArray]:
    """Returns allreduce() of each tensor. Raises InvalidArgument if they are on several devices."""
    wanted = basics.resolve(op, average)
    return _grouped(
        tensors, name, wanted, priority, prescale_factor, postscale_factor, process_set, False
    )


def grouped_allreduce_(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[mx.nd.NDArray]:
    """Reduces the tensors in place; returns them. Raises InvalidArgument if devices differ."""
    wanted = basics.resolve(op, average)
    return _grouped(
        tensors, name, wanted, priority, prescale_factor, postscale_factor, process_set, True
    )


# ----- broadcast -----


def _broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    in_place: bool,
) -> mx.nd.NDArray:
    def run() -> mx.nd.NDArray:
        members = _members(process_set, "broadcast")
        reduction = Reduction(Op.BROADCAST, members=members, root_rank=root_rank)
        out = tensor if in_place else rounds.copy_of(tensor, "broadcast")
        own = named("broadcast", name)
        rounds.start(out, reduction, own, priority, "broadcast", is_fresh=not in_place)
        return out

    return internal(run)


def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Returns the root's tensor at every rank. `root_rank` is a rank of the job."""
    return _broadcast(tensor, root_rank, name, priority, process_set, False)


def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Makes every rank's `tensor` equal to the root's, in place; returns it."""
    return _broadcast(tensor, root_rank, name, priority, process_set, True)


# ----- allgather, alltoall, reducescatter -----


def _together(start: Callable[[], Iterable[Pending]]) -> list[mx.nd.NDArray]:
    return list(internal(lambda: Several.of(start()).wait()))


def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Returns the ranks' tensors joined along the first dimension, whose length may differ."""

    def start() -> list[Pending]:
        members = _members(process_set, "allgather")
        own = named("allgather", name)
        return [collectives.all_gather(tensor, own, members, priority, "allgather")]

    [out] = _together(start)
    return out


def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """Returns allgather() of each tensor."""
    tensors = list(tensors)
    operation = "grouped_allgather"

    def start() -> Iterable[Pending]:
        members = _members(process_set, operation)
        return (
            collectives.all_gather(each, own, members, priority, operation)
            for each, own in zip(tensors, group_names(name, operation, len(tensors)))
        )

    return _together(start)


def _splits(tensor: mx.nd.NDArray, splits: Any, process_set: ProcessSet) -> list[int]:
    count = process_set.size() or 1
    rows = int(tensor.shape[0])
    if splits is None:
        if rows % count != 0:
            raise InvalidArgument(
                f"alltoall: without splits the first dimension, {rows}, must be a multiple of the "
                f"{count} ranks"
            )
        return [rows // count] * count
    if isinstance(splits, mx.nd.NDArray):
        if splits.dtype != np.int32:
            raise InvalidArgument(
                f"alltoall: splits are {np.dtype(splits.dtype)}; they must be int32"
            )
        splits = splits.asnumpy()
    found = np.asarray(splits)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise InvalidArgument(
            f"alltoall: splits are {found.tolist()}; they must be {count} integers, one for each rank"
        )
    if (found < 0).any() or int(found.sum()) > rows:
        raise InvalidArgument(
            f"alltoall: splits are {found.tolist()}; their sum must be at most the first dimension, "
            f"{rows}"
        )
    return [int(each) for each in found]


def alltoall(
    tensor: mx.nd.NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the rows that the ranks have sent here, with `splits` also how many each sent.

    `splits` has an i32 for each rank: the number of rows that go there. Without it every rank gets
    the same number. Raises InvalidArgument if `splits` do not fit the tensor.
    """

    def run() -> Any:
        members = _members(process_set, "alltoall")
        rounds.check(tensor, "alltoall")
        if tensor.ndim == 0:
            raise InvalidArgument("alltoall: a scalar has no first dimension")
        found = _splits(tensor, splits, process_set)
        own = named("alltoall", name)
        received, counts = collectives.all_to_all(tensor, found, own, members, priority)
        if splits is None:
            return received
        like = splits if isinstance(splits, mx.nd.NDArray) else tensor
        return received, collectives.array_like(counts, like)

    return internal(run)


def _scatter(
    tensor: mx.nd.NDArray,
    op: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    pre: float,
    post: float,
    operation: str,
) -> Pending:
    if op == Adasum:
        raise InvalidArgument(f"{operation}: Adasum is not offered: use op=hvd.Average")
    reduction = reduction_of(op, pre, post, process_set, operation)
    if reduction.op not in (Op.AVERAGE, Op.SUM):
        raise InvalidArgument(f"{operation}: op must be hvd.Average or hvd.Sum")
    return collectives.reduce_scatter(tensor, reduction, name, priority, operation)


def reducescatter(
    tensor: mx.nd.NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> mx.nd.NDArray:
    """Returns this rank's rows of the reduction, in rank order. The first may get one row more."""
    [out] = _together(
        lambda: [
            _scatter(
                tensor,
                op,
                named("reducescatter", name),
                priority,
                process_set,
                prescale_factor,
                postscale_factor,
                "reducescatter",
            )
        ]
    )
    return out


def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[mx.nd.NDArray]:
    """Returns reducescatter() of each tensor."""
    tensors = list(tensors)
    names = group_names(name, "grouped_reducescatter", len(tensors))
    return _together(
        lambda: (
            _scatter(
                each,
                op,
                own,
                priority,
                process_set,
                prescale_factor,
                postscale_factor,
                "grouped_reducescatter",
            )
            for each, own in zip(tensors, names)
        )
    )


# ----- barrier and join, which Horovod's module for MXNet lacks. They are those of horovod.torch. -----


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it.

    Operations that were called before may still run: mx.nd.waitall() waits for them.
    """
    internal(lambda: talweg.barrier(_members(process_set, "barrier")))


def join() -> int:
    """Gives zeros to the others' reductions until all ranks have joined, if this one has no more
    data.

    Returns the last rank to join.
    """
    mx.nd.waitall()  # What this rank has called before must be over.
    return internal(joining.join)
