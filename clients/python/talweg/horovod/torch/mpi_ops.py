# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives of torch tensors, by Horovod's signatures. Handles are ints.

Argument errors raise at the call; where ranks disagree synchronize() raises HorovodInternalError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import talweg
from talweg import _client
from talweg._compat import session
from talweg._compat.session import Pending, Several
from talweg._compat.torch import collectives, gradients, rounds
from talweg._compat.torch.compression import Compression
from talweg._declaration import Op
from talweg._exchange import shadow_all
from talweg.errors import InvalidArgument
from talweg.horovod.common import basics
from talweg.horovod.common.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    internal,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from talweg.horovod.common.exceptions import HorovodInternalError
from talweg.horovod.common.process_sets import ProcessSet, global_process_set, members_of

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
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
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def _add(start: Callable[[], Pending]) -> int:
    return internal(lambda: session.current().add(start()))


def _dense(tensor: torch.Tensor, operation: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{operation}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_sparse:
        raise InvalidArgument(
            f"{operation}: a sparse tensor cannot be reduced: use tensor.to_dense()"
        )


def _named(kind: str, name: str | None) -> str | None:
    return None if name is None else f"{kind}.{name}"


def _group_names(name: str | None, kind: str, count: int) -> list[str | None]:
    """A group's names: `grouped_allreduce.x_1of3`."""
    if name is None:
        return [None] * count
    return [f"{kind}.{name}_{i + 1}of{count}" for i in range(count)]


# ----- allreduce -----


def _reduce(
    tensor: torch.Tensor,
    name: str | None,
    op: int | None,
    pre: float,
    post: float,
    process_set: ProcessSet,
    in_place: bool,
    operation: str = "allreduce",
) -> Pending:
    _dense(tensor, operation)
    return rounds.push_pull(
        tensor,
        basics.op_of(op, None, operation),
        name,
        in_place=in_place,
        members=members_of(process_set, operation),
        prescale=pre,
        postscale=post,
    )


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
    wanted = basics.resolve(op, average)
    name = _named("allreduce", name)
    return _add(
        lambda: _reduce(tensor, name, wanted, prescale_factor, postscale_factor, process_set, False)
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
    """As allreduce_async(), into `tensor` itself."""
    wanted = basics.resolve(op, average)
    name = _named("allreduce", name)
    return _add(
        lambda: _reduce(tensor, name, wanted, prescale_factor, postscale_factor, process_set, True)
    )


class _Allreduce(torch.autograd.Function):
    """The gradient is reduced as the tensor was."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *rest: Any) -> Any:
        op, pre, post, process_set = rest
        ctx.arguments = name, op, pre, post, process_set
        return synchronize(allreduce_async(tensor, None, name, op, pre, post, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, op, pre, post, process_set = ctx.arguments
        name = None if name is None else f"{name}.gradient"
        reduced = allreduce(
            gradients[0],
            name=name,
            op=op,
            prescale_factor=pre,
            postscale_factor=post,
            process_set=process_set,
        )
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
    pushed, context = compression.compress(tensor)
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
    """As allreduce(), into `tensor`, which is returned; without a gradient."""
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
    tensors = list(tensors)
    if len({each.device for each in tensors}) > 1:
        raise InvalidArgument("grouped_allreduce: all tensors of a group must be on one device")
    names = _group_names(name, "grouped_allreduce", len(tensors))
    return _add(
        lambda: Several(
            [
                _reduce(each, own, op, pre, post, process_set, in_place, "grouped_allreduce")
                for each, own in zip(tensors, names)
            ]
        )
    )


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """One handle for all; synchronize() gives a tuple."""
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
    """As grouped_allreduce_async(), in place."""
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
        name = None if name is None else f"{name}.gradient"
        reduced = grouped_allreduce(
            gradients,
            name=name,
            op=op,
            prescale_factor=pre,
            postscale_factor=post,
            process_set=process_set,
        )
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
    """The reductions of all tensors; differentiable."""
    wanted = basics.resolve(op, average)
    pushed = [compression.compress(tensor) for tensor in tensors]
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
    """As grouped_allreduce(), in place; without a gradient."""
    wanted = basics.resolve(op, average)
    handle = _grouped(tensors, name, wanted, prescale_factor, postscale_factor, process_set, True)
    return list(synchronize(handle))


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts two allgathers, of indices and values; calling the result waits and returns the sum or
    average, sparse."""
    if op not in (Average, Sum):
        raise NotImplementedError(
            "sparse_allreduce_async: only hvd.Average and hvd.Sum of sparse tensors"
        )
    tensor = tensor.coalesce() if not tensor.is_coalesced() else tensor
    indices = allgather_async(
        tensor.indices().transpose(0, 1).contiguous(), f"{name}.indices", process_set
    )
    values = allgather_async(tensor.values(), f"{name}.values", process_set)

    def wait() -> torch.Tensor:
        all_indices, all_values = synchronize(indices), synchronize(values)
        if op == Average:
            all_values = all_values / (process_set.size() or 1)
        return torch.sparse_coo_tensor(all_indices.transpose(0, 1), all_values, tensor.size())

    return wait


# ----- allgather -----


def _vector(tensor: torch.Tensor, operation: str) -> None:
    _dense(tensor, operation)
    if tensor.dim() == 0:
        raise InvalidArgument(f"{operation}: a scalar has no first dimension: use tensor.view(1)")


def _gather(
    tensor: torch.Tensor, name: str | None, process_set: ProcessSet, operation: str = "allgather"
) -> Pending:
    _vector(tensor, operation)
    members = members_of(process_set, operation)
    return collectives.all_gather(tensor.detach(), name, members)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts joining the ranks' tensors along the first dimension, whose length may differ."""
    return _add(lambda: _gather(tensor, _named("allgather", name), process_set))


class _Allgather(torch.autograd.Function):
    """The gradient is the average of the ranks' own slices of it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        gathered = synchronize(allgather_async(tensor, name, process_set))
        ctx.arguments = tensor.shape[0], name, process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        count, name, process_set = ctx.arguments
        name = None if name is None else f"{name}.gradient"
        reduced = allreduce(gradients[0], name=name, op=Average, process_set=process_set)
        rows = allgather(
            torch.tensor([count]), None if name is None else f"{name}.rows", process_set
        )
        begin = int(rows[: process_set.rank()].sum())
        return reduced[begin : begin + count], None, None


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns the ranks' tensors joined along the first dimension; differentiable."""
    result: torch.Tensor = _Allgather.apply(tensor, name, process_set)
    return result


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """One handle for all; synchronize() gives a tuple."""
    tensors = list(tensors)
    names = _group_names(name, "grouped_allgather", len(tensors))
    return _add(
        lambda: Several(
            [
                _gather(each, own, process_set, "grouped_allgather")
                for each, own in zip(tensors, names)
            ]
        )
    )


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """allgather() of each tensor; differentiable."""
    tensors = list(tensors)
    return tuple(
        allgather(each, None if name is None else f"{name}_{i + 1}of{len(tensors)}", process_set)
        for i, each in enumerate(tensors)
    )


# ----- broadcast -----


def _broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool
) -> Pending:
    _dense(tensor, "broadcast")
    members = members_of(process_set, "broadcast")
    return rounds.broadcast(tensor, root_rank, _named("broadcast", name), in_place, members)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast of the root's tensor; its result is a new one. `root_rank` is a global rank."""
    return _add(lambda: _broadcast(tensor, root_rank, name, process_set, False))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As broadcast_async(), into `tensor` itself."""
    return _add(lambda: _broadcast(tensor, root_rank, name, process_set, True))


class _Broadcast(torch.autograd.Function):
    """The gradient is the average at the root, and zero elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Any:
        ctx.arguments = root_rank, name, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        root_rank, name, process_set = ctx.arguments
        name = None if name is None else f"{name}.gradient"
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
    """Returns the root's tensor on every rank; differentiable."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Makes every rank's `tensor` the root's, in place; returns it."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


# ----- alltoall, reducescatter -----


def _splits(tensor: torch.Tensor, splits: Any, process_set: ProcessSet) -> torch.Tensor:
    count = process_set.size() or 1
    rows = int(tensor.shape[0])
    if splits is None:
        if rows % count != 0:
            raise InvalidArgument(
                f"alltoall: without splits the first dimension, {rows}, must be a multiple of the "
                f"{count} ranks"
            )
        return torch.full((count,), rows // count, dtype=torch.int32)
    found = splits if isinstance(splits, torch.Tensor) else torch.tensor(splits, dtype=torch.int32)
    if found.dtype != torch.int32:
        raise InvalidArgument(f"alltoall: splits are {found.dtype}; they must be torch.int32")
    if found.dim() != 1 or found.numel() != count:
        raise InvalidArgument(
            f"alltoall: splits have shape {tuple(found.shape)}; they must have ({count},)"
        )
    if int(found.sum()) > rows or (found < 0).any():
        raise InvalidArgument(
            f"alltoall: splits are {found.tolist()}; their sum must be at most the first dimension, {rows}"
        )
    return found


def _exchange(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
) -> Pending:
    _vector(tensor, "alltoall")
    members = members_of(process_set, "alltoall")
    found = _splits(tensor, splits, process_set)
    rows = int(found.sum())

    def finish(result: Any) -> tuple[torch.Tensor, torch.Tensor]:
        received, received_splits = result
        counts = torch.as_tensor(received_splits, dtype=torch.int32, device=found.device)
        return received, counts

    return collectives.all_to_all(
        tensor.detach()[:rows], found.tolist(), _named("alltoall", name), members, finish
    )


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts sending rows to each rank; the result is (tensor, received_splits)."""
    return _add(lambda: _exchange(tensor, splits, name, process_set))


class _Alltoall(torch.autograd.Function):
    """The gradient goes back to where the rows came from."""

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
        name = None if name is None else f"{name}.gradient"
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
    """Returns the rows that the ranks have sent here; with `splits` also how many each sent."""
    received, counts = _Alltoall.apply(tensor, splits, name, process_set)
    return received if splits is None else (received, counts)


def _scatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    pre: float,
    post: float,
    operation: str = "reducescatter",
) -> Pending:
    _vector(tensor, operation)
    members = members_of(process_set, operation)
    if op == Adasum:
        raise HorovodInternalError(f"{operation}: Adasum is not offered")
    wanted = basics.op_of(op, None, operation)
    if wanted not in (Op.AVERAGE, Op.SUM):
        raise InvalidArgument(f"{operation}: op must be hvd.Average or hvd.Sum")
    is_integer = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    source = tensor.detach()
    if is_integer:  # Scaled in double and truncated; their average is a sum that is divided.
        source = rounds.scaled(source, pre) if pre != 1.0 else source
        own_post = post / (process_set.size() or 1) if wanted is Op.AVERAGE else post
        return collectives.reduce_scatter(
            source,
            Op.SUM,
            name,
            members,
            finish=lambda result: rounds.scaled(result, own_post) if own_post != 1.0 else result,
        )
    return collectives.reduce_scatter(source, wanted, name, members, pre, post)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduction of which each rank gets its rows, in rank order."""
    return _add(
        lambda: _scatter(
            tensor,
            _named("reducescatter", name),
            op,
            process_set,
            prescale_factor,
            postscale_factor,
        )
    )


class _Reducescatter(torch.autograd.Function):
    """The gradient is gathered from all ranks; for a sum times their number."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *rest: Any) -> Any:
        op, process_set, pre, post = rest
        ctx.arguments = name, op, process_set, pre, post
        return synchronize(reducescatter_async(tensor, name, op, process_set, pre, post))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, op, process_set, pre, post = ctx.arguments
        name = None if name is None else f"{name}.gradient"
        gradient = gradients[0] * (pre * post)
        if op == Sum:
            gradient = gradient * (process_set.size() or 1)
        gathered = allgather(gradient.contiguous(), name, process_set)
        return gathered, None, None, None, None, None


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
    pushed, context = compression.compress(tensor)
    result = _Reducescatter.apply(pushed, name, op, process_set, prescale_factor, postscale_factor)
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
    """One handle for all; synchronize() gives a tuple."""
    tensors = list(tensors)
    names = _group_names(name, "grouped_reducescatter", len(tensors))
    return _add(
        lambda: Several(
            [
                _scatter(
                    each,
                    own,
                    op,
                    process_set,
                    prescale_factor,
                    postscale_factor,
                    "grouped_reducescatter",
                )
                for each, own in zip(tensors, names)
            ]
        )
    )


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """reducescatter() of each tensor; differentiable."""
    tensors = list(tensors)
    return [
        reducescatter(
            each,
            None if name is None else f"{name}_{i + 1}of{len(tensors)}",
            compression,
            op,
            process_set,
            prescale_factor,
            postscale_factor,
        )
        for i, each in enumerate(tensors)
    ]


# ----- join, barrier, handles -----


def join(device: int = -1) -> int:
    """For a rank that has no more data: serves the others' steps with zeros until all have joined.

    Returns the last rank to join. The steps are those of the DistributedOptimizers that have stepped
    since the last join, or of the newest; another collective that a rank calls meanwhile waits for
    the joined ranks. `device` has no effect.
    """

    def run() -> int:
        client = _client.current()
        averagers = gradients.averagers.in_use(client)
        served = shadow_all([averager.exchange for averager in averagers])
        for averager in averagers:
            averager.has_averaged = False
        told = talweg.all_gather_object(served, "horovod.join")
        return max(place for place, count in enumerate(told) if count == min(told))

    basics.rank()
    return internal(run)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it."""

    internal(lambda: talweg.barrier(members_of(process_set, "barrier")))


def poll(handle: int) -> bool:
    """Whether synchronize(handle) would return at once. ValueError for a handle that is none."""
    pending = internal(lambda: session.current().find(handle))
    if pending is None:
        raise ValueError(f"handle {handle!r} was never given out, or is synchronized already")
    return internal(pending.poll)


def synchronize(handle: int) -> Any:
    """Waits and returns the result: a tensor or a tuple; None for a handle that was synchronized."""
    pending = internal(lambda: session.current().take(handle))
    return None if pending is None else internal(pending.wait)
