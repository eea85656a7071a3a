# SPDX-License-Identifier: Apache-2.0
"""Some rows of a tensor: their numbers and their values, as they travel and as they add up."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from talweg._declaration import DType
from talweg._library import native
from talweg._library.native_errors import check
from talweg._library.native_structures import PartOfRows, RowSum

# A part: how many rows it has, how many rows were added up to them, their values, their numbers, and
# zeros up to the next multiple of 8.
_COUNTS = struct.Struct("<qq")
_ALIGNED = 8
# A multiplier that spreads numbers that follow each other: 2^64 divided by the golden ratio, as in
# Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)

# Rows are dealt if ranks give more than this, on average, and if dealing them moves at most this
# part of the bytes that gathering them does.
_DEALT_BYTES_MIN = 64 << 10
_DEALT_PART = 0.9


class SparseRows(NamedTuple):
    """Some rows of a tensor. All others are zeros."""

    indices: np.ndarray  # i64[n]: the rows' numbers.
    values: np.ndarray  # [n, ...]

    @property
    def row_count(self) -> int:
        return len(self.indices)


def index_dtype(total_rows: int) -> np.dtype:
    """Returns the dtype in which numbers of rows travel, for a tensor with `total_rows`."""
    return np.dtype("<i4" if total_rows <= np.iinfo(np.int32).max + 1 else "<i8")


class Part(NamedTuple):
    """Rows that travel together."""

    rows: SparseRows
    given: int  # How many rows of ranks were added up to them.


def packed(parts: Sequence[Part], index: np.dtype) -> tuple[np.ndarray, list[int]]:
    """Returns the parts one after another, u8[n], and the number of bytes of each."""
    sizes = [_packed_bytes(part, index) for part in parts]
    data: np.ndarray = np.zeros(sum(sizes), np.uint8)
    at = 0
    for (rows, given), size in zip(parts, sizes):
        _COUNTS.pack_into(data.data, at, rows.row_count, given)
        values = np.ascontiguousarray(rows.values).reshape(-1).view(np.uint8)
        indices: np.ndarray = rows.indices.astype(index).view(np.uint8)
        indices_at = at + _COUNTS.size + values.size
        data[at + _COUNTS.size : indices_at] = values
        data[indices_at : indices_at + indices.size] = indices
        at += size
    return data, sizes


def _packed_bytes(part: Part, index: np.dtype) -> int:
    used = _COUNTS.size + part.rows.values.nbytes + part.rows.row_count * index.itemsize
    return -(-used // _ALIGNED) * _ALIGNED


def unpacked(
    data: np.ndarray, index: np.dtype, dtype: np.dtype, row_shape: tuple[int, ...]
) -> list[Part]:
    """Returns the parts that packed() has put together. They use the memory of `data`."""
    found: list[Part] = []
    at = 0
    row_bytes = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
    while at < data.size:
        count, given = _COUNTS.unpack_from(data.data, at)
        values_at = at + _COUNTS.size
        values: np.ndarray = np.ndarray((count, *row_shape), dtype, data.data, values_at)
        indices: np.ndarray = np.ndarray((count,), index, data.data, values_at + count * row_bytes)
        part = Part(SparseRows(indices, values), given)
        found.append(part)
        at += _packed_bytes(part, index)
    return found


def dealt(rows: SparseRows, owners: int) -> list[SparseRows]:
    """Returns the rows of each owner. The number of a row says whose it is."""
    hashed = (rows.indices.astype(np.uint64) * _SPREAD) >> np.uint64(32)
    owner = hashed % np.uint64(owners)
    order = np.argsort(owner, kind="stable")  # The rows of an owner stay in ascending order.
    ends = np.cumsum(np.bincount(owner.astype(np.int64), minlength=owners))
    every = []
    for begin, end in zip([0, *ends], ends):
        own = order[begin:end]
        every.append(SparseRows(rows.indices[own], rows.values[own]))
    return every


def coalesced(rows: SparseRows, dtype: DType) -> SparseRows:
    """Returns the rows in ascending order, of one integer type. Those with the same number are
    added up.
    """
    indices: np.ndarray = np.ascontiguousarray(rows.indices, np.int64)
    values = rows.values
    if np.any(indices[1:] < indices[:-1]):
        order = np.argsort(indices, kind="stable")
        indices, values = indices[order], values[order]
    if np.all(indices[1:] > indices[:-1]):
        return SparseRows(indices, values)
    own = SparseRows(indices, np.ascontiguousarray(values))
    return added([own], values.shape[1:], dtype)


def added(
    parts: Sequence[SparseRows], row_shape: tuple[int, ...], dtype: DType, divisor: int = 1
) -> SparseRows:
    """Returns the sum of parts, each of them in ascending order, divided by `divisor`.

    A row is added up in the order of the parts, and of its place in a part, as the ranks of one
    node add theirs (docs/arithmetic.md). Raises InvalidArgument for parts in another order.
    """
    most = sum(part.row_count for part in parts)
    storage = parts[0].values.dtype
    indices: np.ndarray = np.empty(most, np.int64)
    values: np.ndarray = np.empty((most, *row_shape), storage)
    given = (PartOfRows * len(parts))()
    for place, part in zip(given, parts):
        place.numbers, place.values = part.indices.ctypes.data, part.values.ctypes.data
        place.count = part.row_count
    how = RowSum(
        struct_bytes=ctypes.sizeof(RowSum),
        number_bytes=parts[0].indices.itemsize,
        dtype=dtype,
        elements=int(np.prod(row_shape, dtype=np.int64)),
        divisor=divisor,
    )
    count = ctypes.c_uint64()
    library = native.library()
    status = library.talweg_add_rows(
        how, given, len(parts), indices.ctypes.data, values.ctypes.data, ctypes.byref(count)
    )
    check(library, status)
    return SparseRows(indices[: count.value], values[: count.value])


def in_order(parts: Sequence[SparseRows]) -> SparseRows:
    """Returns the rows of all parts, which have no row in common, in ascending order."""
    indices: np.ndarray = np.concatenate([part.indices for part in parts]).astype(np.int64)
    order = np.argsort(indices, kind="stable")
    values: np.ndarray = np.concatenate([part.values for part in parts])
    return SparseRows(indices[order], values[order])


class Traffic(NamedTuple):
    """What a call has moved. All ranks know the same."""

    given_bytes: int  # The rows that ranks have given.
    summed_bytes: int  # The rows of the sum.

    def is_better_dealt(self, ranks: int) -> bool:
        """Whether the rows had better been dealt than gathered."""
        if self.given_bytes < _DEALT_BYTES_MIN * ranks:
            return False  # Another round trip costs more than the bytes.
        return self.given_bytes / ranks + self.summed_bytes < _DEALT_PART * self.given_bytes
