# SPDX-License-Identifier: Apache-2.0
"""Adasum: a sum that gives the average of equal tensors, and the sum of orthogonal ones.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020, arXiv:2006.02924):

    adasum(a, b) = (1 - a.b / 2 a.a) a + (1 - a.b / 2 b.b) b

Ranks 0 and 1 are combined, ranks 2 and 3, and so on, then these results in the same way. All of it
is a sum of the ranks' tensors, each times a number. The inner products of the tensors give these
numbers. So a call takes three collectives:

    pieces     an all_to_all: a rank gets its piece of every rank's tensor
    products   a sum of inner products: each rank brings those of its piece
    sum        a sum of the tensors, each times its rank's number

A tensor may hold several *vectors*, one after another, as an optimizer's tensor holds the changes of
all parameters. Each vector has numbers of its own.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from talweg._call_site import CallSite, call_site
from talweg._client import Client
from talweg._collectives import one_call
from talweg._collectives.call_channel import CallChannel, channel_of
from talweg._collectives.channels import Job, Steps
from talweg._collectives.collectives import JobHandle
from talweg._collectives.kinds import ADASUM, ALL_REDUCE, Given, Kind, Rows, split_evenly
from talweg._collectives.process_sets import Group
from talweg._collectives.words import DIMENSIONS_MAX
from talweg._declaration import DType, Op, numpy_dtype
from talweg._library.native_arguments import check_name_and_priority
from talweg.errors import InvalidArgument, Mismatch

# How many elements of a tensor are multiplied at a time. They are copied to double precision.
_BLOCK = 1 << 16
# A squared norm that is smaller than this part of its terms is what their rounding has left.
_ROUNDING = 1e-12


def start(
    client: Client,
    name: str | None,
    group: Group,
    tensor: np.ndarray,
    shape: Sequence[int],
    lengths: Sequence[int] | None = None,
    priority: int = 0,
) -> JobHandle:
    """Starts the Adasum of `tensor`, an array of f32 or f64 of one dimension. The call changes it.

    The handle's result is an array of the same length. `shape` is what the program's tensor has;
    Mismatch names it if ranks differ. `lengths` are those of the vectors; None: there is one.
    """
    check_name_and_priority("none" if name is None else name, priority)
    channel = channel_of(client, name, group)
    call = _Call(channel, tensor, shape, lengths, priority, call_site())
    job = Job(channel, [call.pieces, call.products, call.sum])
    channel.submit(job)
    return JobHandle(client, 0, 0, channel.name, job=job, shape=lambda results: results[-1])


def dtype_for(dtype: DType, operation: str) -> np.dtype:
    """Returns the dtype of start() for tensors of `dtype`.

    Raises InvalidArgument if that is no floating-point dtype.
    """
    if dtype not in (DType.F16, DType.BF16, DType.F32, DType.F64):
        raise InvalidArgument(
            f"{operation}: Adasum is for floating-point tensors, not for {dtype.name.lower()}: use "
            "op=hvd.Sum or op=hvd.Average"
        )
    return np.dtype(np.float64 if dtype is DType.F64 else np.float32)


class _Call:
    """One call, as each of its collectives finds it."""

    def __init__(
        self,
        channel: CallChannel,
        tensor: np.ndarray,
        shape: Sequence[int],
        lengths: Sequence[int] | None,
        priority: int,
        site: CallSite | None,
    ) -> None:
        self._channel = channel
        self._site = site
        self._tensor = tensor
        self._shape = _said_shape(shape, lengths)
        self._priority = priority
        ends = list(itertools.accumulate([tensor.size] if lengths is None else lengths))
        self._vectors = list(zip([0, *ends], ends))
        self._part_rows = split_evenly(tensor.size, channel.group.size)

    def pieces(self) -> Steps:
        """Returns the pieces of all ranks, a row for each."""
        dtype, size = self._tensor.dtype, self._channel.group.size
        found = np.empty((size, self._part_rows[self._channel.group.place]), dtype)
        rows = Rows(numpy_dtype(dtype).name.lower(), self._shape, dtype.itemsize)
        try:
            yield from self._run(ADASUM, rows, self._part_rows, self._tensor, found)
        except Mismatch as mismatch:  # No rank makes the other two.
            mismatch.ends_all = True
            raise
        self._pieces = found
        return None

    def products(self) -> Steps:
        """Returns this rank's number for each vector."""
        place, size = self._channel.group.place, self._channel.group.size
        begin = sum(self._part_rows[:place])
        end = begin + self._part_rows[place]
        own: np.ndarray = np.zeros((len(self._vectors), size, size))
        for vector, (first, last) in enumerate(self._vectors):
            piece = self._pieces[:, max(first, begin) - begin : max(min(last, end) - begin, 0)]
            own[vector] = inner_products(piece)
        del self._pieces
        yield from self._summed(own)
        self._numbers = numbers_of(own)[:, place]
        return None

    def sum(self) -> Steps:
        """Returns the result."""
        tensor = self._tensor
        for (first, last), number in zip(self._vectors, self._numbers):
            own = tensor[first:last]
            # Where lengths are far apart, a number may be too large for f32. The product is not.
            np.multiply(own, number, out=own, dtype=np.float64, casting="same_kind")
        yield from self._summed(tensor)
        return tensor

    def _summed(self, array: np.ndarray) -> Steps:
        """Sums the ranks' arrays, in place."""
        dtype = numpy_dtype(array.dtype)
        rows = Rows(dtype.name.lower(), array.shape, array.nbytes)
        return self._run(ALL_REDUCE, rows, [1], array, array, op=Op.SUM, dtype=dtype)

    def _run(
        self,
        kind: Kind,
        rows: Rows,
        part_rows: list[int],
        source: np.ndarray,
        target: np.ndarray,
        **reduction: Any,
    ) -> Steps:
        def allocate(_: Rows, counts: list[int]) -> tuple[Any, int]:
            return target, int(target.ctypes.data)

        address = int(source.ctypes.data)
        given = Given(kind, 0, rows, part_rows, address, source, allocate, **reduction)
        given.call, given.site = ADASUM.name, self._site
        return one_call.steps(self._channel, given, self._priority)


def _said_shape(shape: Sequence[int], lengths: Sequence[int] | None) -> tuple[int, ...]:
    """Returns what ranks compare: the shape, or how many elements there are in which vectors."""
    if lengths is not None:
        digest = zlib.crc32(np.array(lengths, "<i8").tobytes())
        return sum(lengths), len(lengths), digest
    said = tuple(shape)
    return said if len(said) <= DIMENSIONS_MAX else (int(np.prod(said)),)


def inner_products(vectors: np.ndarray) -> np.ndarray:
    """Returns the inner product of each row with each other row, in double precision."""
    products: np.ndarray = np.zeros((len(vectors), len(vectors)))
    for begin in range(0, vectors.shape[1], _BLOCK):
        block: np.ndarray = vectors[:, begin : begin + _BLOCK].astype(np.float64)
        products += block @ block.T
    return products


def numbers_of(products: np.ndarray) -> np.ndarray:
    """Returns what each rank's tensor is multiplied by, for each vector: f64[vectors, ranks].

    `products` is f64[vectors, ranks, ranks]: the inner products of the ranks' tensors.
    """
    size = products.shape[1]
    combined = [np.tile(row, (len(products), 1)) for row in np.eye(size)]
    while len(combined) > 1:
        pairs = zip(combined[::2], combined[1::2])
        left = combined[len(combined) // 2 * 2 :]  # The last of an odd number.
        combined = [_pair(products, a, b) for a, b in pairs] + left
    return combined[0]


def _pair(products: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns adasum(a, b). All are sums of the ranks' tensors: f64[vectors, ranks] of factors."""

    def product(one: np.ndarray, of: np.ndarray, other: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.einsum("vi,vij,vj->v", one, of, other)
        return found

    dot = product(a, products, b)
    result: np.ndarray = np.zeros_like(a)
    for each in (a, b):
        norm = product(each, products, each)
        terms = product(np.abs(each), np.abs(products), np.abs(each))
        with np.errstate(divide="ignore", invalid="ignore"):
            half = np.where(norm <= _ROUNDING * terms, 0.0, dot / (2 * norm))
        result += (1 - half)[:, np.newaxis] * each
    return result
