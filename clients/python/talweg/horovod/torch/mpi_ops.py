# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives of torch tensors, with Horovod's signatures. Handles are ints.

Argument errors raise at the call. If ranks disagree, synchronize() raises HorovodInternalError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import talweg
from talweg._arguments import compressed, listed
from talweg._client.session import Pending
from talweg._compat.torch import gradients
from talweg._compat.torch.compression import Compression
from talweg.errors import InvalidArgument
from talweg.horovod.common import basics, joining, surface
from talweg.horovod.common.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    internal,
    is_homogeneous,
)
from talweg.horovod.common.exceptions import HorovodInternalError
from talweg.horovod.common.names import member_names, named
from talweg.horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    members_of,
    remove_process_set,
)
from talweg.horovod.common.surface import *  # noqa: F403
from talweg.horovod.torch import _starts
from talweg.horovod.torch._handles import add, add_group, poll, synchronize
from talweg.horovod.torch._sparse_allreduce import sparse_allreduce_async

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "is_homogeneous",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += surface.__all__

_basics = basics  # Programs that know Horovod's own code use this name.


def _of_gradient(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"


# ----- allreduce -----


def _allreduce_async(
    tensor: torch.Tensor,
    average: bool | None,
    name: str | None,
    op: int | None,
    pre: float,
    post: float,
    process_set: ProcessSet,
    in_place: bool,
) -> int:
    wanted, name = basics.resolve(op, average), named("allreduce", name)
    return add(lambda: _starts.reduce(tensor, name, wanted, pre, post, process_set, in_place))


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a reduction of `tensor` over all ranks and returns its handle."""
    return _allreduce_async(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, False
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Does the same as allreduce_async(), but writes the result into `tensor` itself."""
    return _allreduce_async(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, True
    )


class _Allreduce(torch.autograd.Function):
    """The gradient is reduced in the same way as the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *rest: Any) -> Any:
        op, pre, post, process_set = rest
        ctx.arguments = name, op, pre, post, process_set
        return synchronize(allreduce_async(tensor, None, name, op, pre, post, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, op, pre, post, process_set = ctx.arguments
        name = _of_gradient(name)
        none = Compression.none
        reduced = allreduce(gradients[0], None, name, none, op, pre, post, process_set)
        return reduced, None, None, None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the reduction of `tensor` over all ranks; differentiable."""
    wanted = basics.resolve(op, average)
    pushed, context = compressed(tensor, compression, "allreduce")
    result = _Allreduce.apply(pushed, name, wanted, prescale_factor, postscale_factor, process_set)
    decompressed: torch.Tensor = compression.decompress(result, context)
    return decompressed


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Does the same as allreduce(), but into `tensor`, which it returns; without a gradient."""
    wanted = basics.resolve(op, average)
    handle = allreduce_async_(
        tensor, None, name, wanted, prescale_factor, postscale_factor, process_set
    )
    result: torch.Tensor = synchronize(handle)
    return result


def _grouped(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int | None,
    pre: float,
    post: float,
    process_set: ProcessSet,
    in_place: bool,
) -> int:
    tensors = listed(tensors, "grouped_allreduce")
    if len({each.device for each in tensors if isinstance(each, torch.Tensor)}) > 1:
        raise InvalidArgument("grouped_allreduce: all tensors of a group must be on one device")

    def start(each: torch.Tensor, own: str | None) -> Pending:
        return _starts.reduce(each, own, op, pre, post, process_set, in_place, "grouped_allreduce")

    return add_group(tensors, name, "grouped_allreduce", start)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allreduce() of each tensor. Returns one handle; synchronize() returns a tuple."""
    wanted = basics.resolve(op, average)
    return _grouped(tensors, name, wanted, prescale_factor, postscale_factor, process_set, False)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Does the same as grouped_allreduce_async(), in place."""
    wanted = basics.resolve(op, average)
    return _grouped(tensors, name, wanted, prescale_factor, postscale_factor, process_set, True)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, *rest: Any) -> Any:
        op, pre, post, process_set, *tensors = rest
        ctx.arguments = name, op, pre, post, process_set
        return synchronize(grouped_allreduce_async(tensors, None, name, op, pre, post, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, op, pre, post, process_set = ctx.arguments
        name = _of_gradient(name)
        none = Compression.none
        reduced = grouped_allreduce(gradients, None, name, none, op, pre, post, process_set)
        return (None, None, None, None, None, *reduced)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Returns the reductions of all tensors; differentiable."""
    wanted = basics.resolve(op, average)
    tensors = listed(tensors, "grouped_allreduce")
    pushed = [compressed(tensor, compression, "grouped_allreduce") for tensor in tensors]
    results = _GroupedAllreduce.apply(
        name,
        wanted,
        prescale_factor,
        postscale_factor,
        process_set,
        *(tensor for tensor, _ in pushed),
    )
    return [
        compression.decompress(result, context) for result, (_, context) in zip(results, pushed)
    ]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Does the same as grouped_allreduce(), in place; without a gradient."""
    wanted = basics.resolve(op, average)
    handle = _grouped(tensors, name, wanted, prescale_factor, postscale_factor, process_set, True)
    return list(synchronize(handle))


# ----- allgather -----


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts joining the ranks' tensors along the first dimension, whose length may differ."""
    return add(lambda: _starts.gather(tensor, named("allgather", name), process_set))


class _Allgather(torch.autograd.Function):
    """`wait` returns the result. The gradient is this rank's slice of the average of the ranks'
    gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        wait: Callable[[], torch.Tensor],
        name: str | None,
        process_set: ProcessSet,
    ) -> Any:
        gathered = wait()
        ctx.arguments = tensor.shape[0], name, process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        count, name, process_set = ctx.arguments
        name = _of_gradient(name)
        reduced = allreduce(gradients[0], name=name, op=Average, process_set=process_set)
        own = torch.tensor([count], device="cpu")
        rows = allgather(own, None if name is None else f"{name}.rows", process_set)
        begin = int(rows[: process_set.rank()].sum())
        return reduced[begin : begin + count], None, None, None


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns the ranks' tensors joined along the first dimension; differentiable."""
    handle = allgather_async(tensor, name, process_set)
    result: torch.Tensor = _Allgather.apply(tensor, lambda: synchronize(handle), name, process_set)
    return result


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allgather() of each tensor. Returns one handle; synchronize() returns a tuple."""

    def start(each: torch.Tensor, own: str | None) -> Pending:
        return _starts.gather(each, own, process_set, "grouped_allgather")

    return add_group(tensors, name, "grouped_allgather", start)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Returns allgather() of each tensor; differentiable."""
    tensors = listed(tensors, "grouped_allgather")
    results = synchronize(grouped_allgather_async(tensors, name, process_set))
    return tuple(
        _Allgather.apply(each, lambda result=result: result, own, process_set)
        for each, result, own in zip(tensors, results, member_names(name, len(tensors)))
    )


# ----- broadcast -----


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast of the root's tensor into a new one. `root_rank` is a rank of the job."""
    return add(lambda: _starts.broadcast(tensor, root_rank, name, process_set, False))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Does the same as broadcast_async(), but into `tensor` itself."""
    return add(lambda: _starts.broadcast(tensor, root_rank, name, process_set, True))


class _Broadcast(torch.autograd.Function):
    """The gradient at the root is the average of the ranks' gradients; elsewhere it is zero."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Any:
        ctx.arguments = root_rank, name, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        root_rank, name, process_set = ctx.arguments
        name = _of_gradient(name)
        reduced = allreduce(gradients[0], name=name, op=Average, process_set=process_set)
        if talweg.rank() != root_rank:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the root's tensor at every rank; differentiable. `root_rank` is a rank of the job."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Makes every rank's `tensor` equal to the root's, in place; returns it."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


# ----- alltoall, reducescatter -----


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts sending rows to each rank. The result is (tensor, received_splits)."""
    return add(lambda: _starts.exchange(tensor, splits, name, process_set))


class _Alltoall(torch.autograd.Function):
    """The gradient of each row goes back to the rank that the row came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        received, counts = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.arguments = counts, name, process_set, tensor.shape[0]
        ctx.mark_non_differentiable(counts)
        return received, counts

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        counts, name, process_set, rows = ctx.arguments
        name = _of_gradient(name)
        back, _ = alltoall(gradients[0].contiguous(), counts.cpu(), name, process_set)
        if back.shape[0] < rows:  # Surplus rows were dropped.
            back = torch.cat([back, back.new_zeros(rows - back.shape[0], *back.shape[1:])])
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the rows that the ranks have sent here, with `splits` also how many each sent;
    differentiable.
    """
    received, counts = _Alltoall.apply(tensor, splits, name, process_set)
    return received if splits is None else (received, counts)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduction. Each rank gets its own rows of the result, in rank order."""
    name, pre, post = named("reducescatter", name), prescale_factor, postscale_factor
    return add(lambda: _starts.scatter(tensor, name, op, process_set, pre, post))


class _Reducescatter(torch.autograd.Function):
    """`wait` returns the result. The gradient is gathered from all ranks. For a sum it is
    multiplied by their number.
    """

    @staticmethod
    def forward(ctx: Any, _: Any, wait: Callable[[], torch.Tensor], *arguments: Any) -> Any:
        ctx.arguments = arguments
        return wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, op, process_set, pre, post = ctx.arguments
        name = _of_gradient(name)
        gradient = gradients[0] * (pre * post)
        if op == Sum:
            gradient = gradient * (process_set.size() or 1)
        gathered = allgather(gradient.contiguous(), name, process_set)
        return gathered, None, None, None, None, None, None


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Returns this rank's rows of the reduction; differentiable."""
    pushed, context = compressed(tensor, compression, "reducescatter")
    how = op, process_set, prescale_factor, postscale_factor
    handle = reducescatter_async(pushed, name, *how)
    result = _Reducescatter.apply(pushed, lambda: synchronize(handle), name, *how)
    decompressed: torch.Tensor = compression.decompress(result, context)
    return decompressed


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts reducescatter() of each tensor. Returns one handle; synchronize() returns a tuple."""

    def start(each: torch.Tensor, own: str | None) -> Pending:
        kind, pre, post = "grouped_reducescatter", prescale_factor, postscale_factor
        return _starts.scatter(each, own, op, process_set, pre, post, kind)

    return add_group(tensors, name, "grouped_reducescatter", start)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Returns reducescatter() of each tensor; differentiable."""
    tensors = listed(tensors, "grouped_reducescatter")
    pushed = [compressed(tensor, compression, "grouped_reducescatter") for tensor in tensors]
    how = op, process_set, prescale_factor, postscale_factor
    handle = grouped_reducescatter_async([each for each, _ in pushed], name, *how)
    return [
        compression.decompress(
            _Reducescatter.apply(each, lambda result=result: result, own, *how), context
        )
        for (each, context), result, own in zip(
            pushed, synchronize(handle), member_names(name, len(tensors))
        )
    ]


# ----- join, barrier -----


def join(device: int = -1) -> int:
    """Gives zeros to the others' reductions until all ranks have joined, if this one has no more
    data.

    Returns the last rank to join. Meanwhile all other collectives except barrier() raise at the
    ranks that call them. `device` has no effect.
    """
    gradients.averagers.forget_accumulated()
    return internal(joining.join)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it."""

    internal(lambda: talweg.barrier(members_of(process_set, "barrier")))
