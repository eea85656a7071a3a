# SPDX-License-Identifier: Apache-2.0
"""allgather, alltoall and reducescatter of NDArrays.

The caller waits for a result, because only the other ranks know its shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np

import talweg
from talweg import ProcessSet, _client
from talweg._client import Handle
from talweg._client.session import Pending
from talweg._collectives.scaling import average_integers
from talweg._compat.mxnet import rounds
from talweg._compat.mxnet.rounds import Reduction
from talweg._declaration import Op
from talweg.errors import InvalidArgument


class _Collective:
    """A collective that is under way."""

    def __init__(self, handle: Handle, finish: Callable[[Any], Any]) -> None:
        self._handle = handle
        self._finish = finish

    def poll(self) -> bool:
        return talweg.poll(self._handle)

    def wait(self) -> Any:
        return self._finish(talweg.synchronize(self._handle))


def rows_of(tensor: Any, operation: str) -> np.ndarray:
    """Waits for the tensor's elements and returns them; raises InvalidArgument for a scalar."""
    rounds.check(tensor, operation)
    if tensor.ndim == 0:
        raise InvalidArgument(
            f"{operation}: a scalar has no first dimension: use tensor.reshape((1,))"
        )
    array: np.ndarray = tensor.asnumpy()
    return array


def array_like(result: np.ndarray, like: mx.nd.NDArray) -> mx.nd.NDArray:
    """Returns the result as a new array, of the kind of `like` and on its device."""
    make = mx.np.array if isinstance(like, mx.np.ndarray) else mx.nd.array
    return make(result, dtype=result.dtype, ctx=like.context)


def all_gather(
    tensor: mx.nd.NDArray,
    name: str | None,
    members: ProcessSet | None,
    priority: int,
    operation: str,
) -> Pending:
    rows = rows_of(tensor, operation)
    handle = talweg.all_gather_async(rows, name=name, process_set=members, priority=priority)
    return _Collective(handle, lambda result: array_like(result, tensor))


def reduce_scatter(
    tensor: mx.nd.NDArray, reduction: Reduction, name: str | None, priority: int, operation: str
) -> Pending:
    """Starts a sum or an average. Averages of integers are rounded towards zero."""
    rows = rows_of(tensor, operation)
    members, factors = reduction.members, reduction.factors
    size = _client.current().size if members is None else members.size()
    divides = reduction.op is Op.AVERAGE and rows.dtype.kind in "iu"

    def finish(result: np.ndarray) -> mx.nd.NDArray:
        if divides:
            average_integers(result, size, factors.postscale)
        return array_like(result, tensor)

    handle = talweg.reduce_scatter_async(
        rows,
        op=Op.SUM if divides else reduction.op,
        name=name,
        process_set=members,
        prescale_factor=factors.prescale,
        postscale_factor=1.0 if divides else factors.postscale,
        priority=priority,
    )
    return _Collective(handle, finish)


def all_to_all(
    tensor: mx.nd.NDArray,
    splits: list[int],
    name: str | None,
    members: ProcessSet | None,
    priority: int,
) -> tuple[mx.nd.NDArray, np.ndarray]:
    """Waits, and returns the received rows, and i32[ranks]: how many from each."""
    rows = rows_of(tensor, "alltoall")[: sum(splits)]
    received, counts = talweg.all_to_all(
        rows, splits=splits, name=name, process_set=members, priority=priority
    )
    return array_like(received, tensor), np.asarray(counts, np.int32)
