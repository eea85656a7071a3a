# SPDX-License-Identifier: Apache-2.0
"""push_pull_sparse() of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from talweg import _client
from talweg._arguments import chosen_op
from talweg._client import Handle
from talweg._client.left_rounds import finish_call
from talweg._collectives import sparse_sums
from talweg._collectives.collectives import JobHandle
from talweg._collectives.numpy_calls import contiguous, real_pairs
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import Factors
from talweg._collectives.sparse_sums import NAME, SparseRows, SparseTensor
from talweg._declaration import DType, Op, numpy_dtype
from talweg.errors import InvalidArgument, WrongType


def _start(
    indices: Any,
    values: Any,
    rows: int,
    name: str | None,
    op: Op,
    process_set: ProcessSet | None,
    factors: Factors,
    priority: int,
    is_async: bool,
) -> JobHandle:
    client = _client.current()
    given = _indices(indices)
    pairs = real_pairs(contiguous(values), op)
    if values.ndim == 0:
        raise InvalidArgument(f"{NAME}: values of no dimensions: give an array of one for each row")
    dtype = numpy_dtype(pairs.dtype)
    tensor = SparseTensor((_total(rows), *pairs.shape[1:]), dtype, op, 1, factors)
    stored = pairs.view(np.uint16) if dtype is DType.BF16 else pairs
    group = Group(client, process_set, NAME)
    handle = sparse_sums.start(
        client, name, group, tensor, SparseRows(given, stored), priority, is_async
    )

    def shape(results: list[SparseRows]) -> SparseRows:
        [(summed, sums)] = results
        shown = np.ascontiguousarray(sums).view(values.dtype)
        return SparseRows(summed, shown.reshape(len(summed), *values.shape[1:]))

    handle.shape = shape
    return handle


def _indices(indices: Any) -> np.ndarray:
    if not isinstance(indices, np.ndarray):
        raise WrongType(
            f"{NAME}: indices are a {type(indices).__name__}: pass a numpy.ndarray of integers"
        )
    return indices


def _total(rows: Any) -> int:
    if isinstance(rows, bool) or not hasattr(rows, "__index__") or int(rows) < 0:
        raise InvalidArgument(
            f"{NAME}: rows is {rows!r}; it must be the number of rows of the whole tensor"
        )
    return int(rows)


def push_pull_sparse_async(
    indices: np.ndarray,
    values: np.ndarray,
    rows: int,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Handle:
    """Starts push_pull_sparse() and returns its handle; the arrays may be changed at once."""
    factors = Factors(prescale_factor, postscale_factor)
    chosen = chosen_op(op, average)
    return _start(indices, values, rows, name, chosen, process_set, factors, priority, True)


def push_pull_sparse(
    indices: np.ndarray,
    values: np.ndarray,
    rows: int,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
) -> SparseRows:
    """Returns the average, or the sum, of a tensor of which each rank gives some rows.

    The tensor has `rows` rows. `indices`, integers of shape (n,), says which of them this rank
    gives. `values` has the shape (n, ...) and a dtype that can be summed. Ranks may give different
    rows, and any number of them: all others are zeros. A row that is given more than once is added
    up. An average divides by the number of ranks, however many of them have given the row.

    Returns (indices, values), the same at all ranks: the rows that any rank has given, in ascending
    order. Raises InvalidArgument for a row that the tensor does not have, and Mismatch at every
    rank if tensors have other rows, shapes or dtypes at another one. Calls without a name are
    matched by their order, which must be the same at every rank of the group.
    """
    client, chosen = _client.current(), chosen_op(op, average)
    client.check_timeout(timeout_s)
    factors = Factors(prescale_factor, postscale_factor)
    handle = _start(indices, values, rows, name, chosen, process_set, factors, priority, False)
    result: SparseRows = finish_call(client, handle, timeout_s)
    return result
