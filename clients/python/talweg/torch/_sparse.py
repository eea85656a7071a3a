# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors: sums of them, and the rows that they consist of."""

from __future__ import annotations

import numpy as np
import torch

from talweg import _client
from talweg._arguments import chosen_op
from talweg._client import Client, Handle
from talweg._client.left_rounds import finish_call
from talweg._collectives import sparse_sums
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._collectives.sparse_rows import SparseRows
from talweg._collectives.sparse_sums import NAME, SparseTensor
from talweg._declaration import DType, Op
from talweg.errors import InvalidArgument
from talweg.torch._checks import require_tensor
from talweg.torch._tensors import as_pushed, wire_dtype


def with_values(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Returns a coalesced COO tensor, with other values."""
    return _made(tensor.indices(), values, tensor.shape)._coalesced_(True)


def without_rows(like: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Returns a COO tensor of zeros, with so many sparse dimensions."""
    indices = torch.empty((dimensions, 0), dtype=torch.int64, device=like.device)
    values = like.detach().new_empty((0, *like.shape[dimensions:]))
    return _made(indices, values, like.shape)


def _made(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    # torch would put it on its default device, and not where its values are.
    return torch.sparse_coo_tensor(
        indices, values, shape, device=values.device, check_invariants=False
    )


def as_sparse(tensor: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Returns the tensor as a COO tensor with so many sparse dimensions."""
    if tensor.layout is torch.sparse_coo and tensor.sparse_dim() == dimensions:
        return tensor
    return tensor.to_dense().to_sparse(dimensions)


def start_sum(
    client: Client,
    tensor: torch.Tensor,
    op: Op,
    name: str | None,
    priority: int = 0,
    process_set: ProcessSet | None = None,
    factors: Factors = NO_FACTORS,
    is_async: bool = True,
) -> Handle:
    """Starts the sum of the ranks' COO tensors. Its result is coalesced, and on the same device."""
    require_tensor(tensor)
    if tensor.layout is not torch.sparse_coo:
        raise InvalidArgument(
            f"{NAME}: a tensor of layout {tensor.layout}: use tensor.to_sparse(1), or push_pull() "
            "for a dense one"
        )
    summed, rows = given_of(tensor, op, factors)
    group = Group(client, process_set, NAME)
    handle = sparse_sums.start(client, name, group, summed, rows, priority, is_async)
    like = tensor.detach()
    handle.shape = lambda results: tensor_of(results[0], like)
    return handle


def given_of(
    tensor: torch.Tensor, op: Op, factors: Factors = NO_FACTORS
) -> tuple[SparseTensor, SparseRows]:
    """Returns what a rank brings to the sum of the ranks' COO tensors, in host memory."""
    own = tensor.detach().cpu().coalesce()
    pairs = as_pushed(own.values().resolve_conj().resolve_neg(), op)
    dtype = wire_dtype(pairs)
    shape = (*own.shape[: own.sparse_dim()], *pairs.shape[1:])
    summed = SparseTensor(shape, dtype, op, own.sparse_dim(), factors)
    return summed, SparseRows(_numbers(own), _array(pairs, dtype))


def with_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a COO tensor of bools as one of integers, which have sums, and others as they are."""
    if tensor.dtype is not torch.bool or tensor.layout is not torch.sparse_coo:
        return tensor
    own = tensor.detach().coalesce()
    return with_values(own, own.values().to(torch.int32))


def _array(values: torch.Tensor, dtype: DType) -> np.ndarray:
    if dtype is DType.BF16:  # NumPy lacks it.
        return values.contiguous().view(torch.int16).numpy().view(np.uint16)
    return values.numpy()


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    """Returns the numbers of a coalesced tensor's rows (SparseTensor)."""
    numbers = torch.zeros(tensor._nnz(), dtype=torch.int64, device="cpu")
    for indices, length in zip(tensor.indices(), tensor.shape):
        numbers = numbers * length + indices
    return numbers.numpy()


def tensor_of(rows: SparseRows, like: torch.Tensor) -> torch.Tensor:
    """Returns a sum's rows as a coalesced COO tensor of the device, dtype and shape of `like`."""
    numbers = torch.from_numpy(rows.indices)
    indices = []
    for length in reversed(like.shape[: like.sparse_dim()]):
        indices.append(numbers % length if length else numbers)
        numbers = numbers.div(length, rounding_mode="floor") if length else numbers
    stacked = torch.stack(indices[::-1]) if indices else numbers.new_empty((0, len(numbers)))
    array = np.ascontiguousarray(rows.values)
    values = torch.from_numpy(array.view(np.int16) if like.dtype is torch.bfloat16 else array)
    if like.is_complex():
        values = torch.view_as_complex(values)
    values = values.view(like.dtype).to(like.device)
    return _made(stacked.to(like.device), values, like.shape)._coalesced_(True)


def push_pull_sparse_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Handle:
    """Starts push_pull_sparse() and returns its handle; the tensor may be changed at once."""
    factors = Factors(prescale_factor, postscale_factor)
    chosen = chosen_op(op, average)
    return start_sum(_client.current(), tensor, chosen, name, priority, process_set, factors)


def push_pull_sparse(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Returns the average, or the sum, of the ranks' sparse COO tensors, as a coalesced COO tensor.

    Each rank may have other indices, and any number of them, also none. Shapes, sparse dimensions
    and dtypes are alike at all ranks; otherwise Mismatch names two of them. The call has no
    gradient. See talweg.push_pull_sparse().
    """
    client, chosen = _client.current(), chosen_op(op, average)
    client.check_timeout(timeout_s)
    factors = Factors(prescale_factor, postscale_factor)
    of = (chosen, name, priority, process_set, factors, False)
    result: torch.Tensor = finish_call(client, start_sum(client, tensor, *of), timeout_s)
    return result
