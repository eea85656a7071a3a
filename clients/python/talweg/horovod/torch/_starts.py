# SPDX-License-Identifier: Apache-2.0
"""Starts Horovod's operations of torch tensors: checks their arguments and makes their names.

Raises InvalidArgument if an operation cannot be carried out. The returned operations have no handle
yet.
"""

from __future__ import annotations

from typing import Any

import torch

from talweg._arguments import factors_of
from talweg._client.session import Pending
from talweg._compat.torch import collectives, rounds
from talweg._declaration import Op
from talweg.errors import InvalidArgument, WrongType
from talweg.horovod.common import basics
from talweg.horovod.common.basics import Adasum
from talweg.horovod.common.exceptions import HorovodInternalError
from talweg.horovod.common.names import named
from talweg.horovod.common.process_sets import ProcessSet, members_of
from talweg.torch import _sparse


def _dense(tensor: torch.Tensor, operation: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise WrongType(f"{operation}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_sparse:
        raise InvalidArgument(
            f"{operation}: a sparse tensor cannot be reduced: use tensor.to_dense()"
        )


def _vector(tensor: torch.Tensor, operation: str) -> None:
    _dense(tensor, operation)
    if tensor.dim() == 0:
        raise InvalidArgument(f"{operation}: a scalar has no first dimension: use tensor.view(1)")


def reduce(
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
    pre, post = factors_of(pre, post, operation)
    members = members_of(process_set, operation)
    if basics.is_adasum(op):
        out = tensor if in_place else None
        return collectives.adasum(tensor, name, members, operation, pre, post, out=out)
    return rounds.push_pull(
        tensor,
        basics.op_of(op, None, operation),
        name,
        in_place=in_place,
        members=members,
        prescale=pre,
        postscale=post,
    )


def reduce_sparse(
    tensor: torch.Tensor, name: str | None, op: Op, process_set: ProcessSet
) -> Pending:
    """Starts a sum or an average of COO tensors. Averages of integers are floating."""
    operation = "sparse_allreduce"
    if not isinstance(tensor, torch.Tensor):
        raise WrongType(f"{operation}: expected a torch.Tensor, got {type(tensor).__name__}")
    members = members_of(process_set, operation)
    own, is_average = _sparse.with_numbers(tensor.detach()), op is Op.AVERAGE
    is_whole = not (own.is_floating_point() or own.is_complex())
    size = process_set.size() or 1

    def finish(result: torch.Tensor) -> torch.Tensor:
        if is_average and is_whole:
            return _sparse.with_values(result, result.values() / size)
        if tensor.dtype is torch.bool:
            return _sparse.with_values(result, result.values() != 0)
        return result

    return collectives.sparse_sum(own, Op.SUM if is_whole else op, name, members, finish)


def gather(
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    operation: str = "allgather",
) -> Pending:
    _vector(tensor, operation)
    members = members_of(process_set, operation)
    return collectives.all_gather(tensor.detach(), name, members)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool
) -> Pending:
    _dense(tensor, "broadcast")
    members = members_of(process_set, "broadcast")
    return rounds.broadcast(tensor, root_rank, named("broadcast", name), in_place, members)


def _splits(tensor: torch.Tensor, splits: Any, process_set: ProcessSet) -> torch.Tensor:
    count = process_set.size() or 1
    rows = int(tensor.shape[0])
    if splits is None:
        if rows % count != 0:
            raise InvalidArgument(
                f"alltoall: without splits the first dimension, {rows}, must be a multiple of the "
                f"{count} ranks"
            )
        return torch.full((count,), rows // count, dtype=torch.int32, device="cpu")
    found = splits
    if not isinstance(splits, torch.Tensor):
        found = torch.tensor(splits, dtype=torch.int32, device="cpu")
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


def exchange(
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
        tensor.detach()[:rows], found.tolist(), named("alltoall", name), members, finish
    )


def scatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    pre: float,
    post: float,
    operation: str = "reducescatter",
) -> Pending:
    _vector(tensor, operation)
    pre, post = factors_of(pre, post, operation)
    members = members_of(process_set, operation)
    if op == Adasum:
        raise HorovodInternalError(f"{operation}: Adasum is not offered")
    wanted = basics.op_of(op, None, operation)
    if wanted not in (Op.AVERAGE, Op.SUM):
        raise InvalidArgument(f"{operation}: op must be hvd.Average or hvd.Sum")
    is_integer = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    source = tensor.detach()
    if is_integer:  # Scaled in double precision and truncated. An average is a sum, divided here.
        source = rounds.scaled(source, pre) if pre != 1.0 else source
        size = process_set.size() or 1

        def finish(result: torch.Tensor) -> torch.Tensor:
            if wanted is Op.AVERAGE:
                return rounds.average_whole(result, size, post)
            return rounds.scaled(result, post) if post != 1.0 else result

        return collectives.reduce_scatter(source, Op.SUM, name, members, finish=finish)
    return collectives.reduce_scatter(source, wanted, name, members, pre, post)
