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
from talweg._library.native_structures import PartOfRows, RowSum
from talweg.errors import TalwegError

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
    indices: np.ndarray = rows.indices.astype(np.int64, copy=False)
    if np.all(indices[1:] > indices[:-1]):
        return SparseRows(indices, rows.values)
    order = np.argsort(indices, kind="stable")
    indices = indices[order]
    first = _first_of_each(indices)
    wide = widened(rows.values[order], dtype)
    values = np.add.reduceat(wide, np.flatnonzero(first), axis=0, dtype=wide.dtype)
    return SparseRows(indices[first], narrowed(values, dtype))


def added(
    parts: Sequence[SparseRows], row_shape: tuple[int, ...], dtype: DType, divisor: int = 1
) -> SparseRows:
    """Returns the sum of parts, each of which is coalesced(), divided by `divisor`.

    A row is added up in the order of the parts, as the ranks of one node add theirs
    (docs/arithmetic.md). Raises InvalidArgument for parts that are not in ascending order.
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
    if status != 0:
        text = (library.talweg_last_error() or b"").decode(errors="replace")
        raise native.EXCEPTIONS.get(status, TalwegError)(text)
    return SparseRows(indices[: count.value], values[: count.value])


def in_order(parts: Sequence[SparseRows]) -> SparseRows:
    """Returns the rows of all parts, which have no row in common, in ascending order."""
    indices: np.ndarray = np.concatenate([part.indices for part in parts]).astype(np.int64)
    order = np.argsort(indices, kind="stable")
    values: np.ndarray = np.concatenate([part.values for part in parts])
    return SparseRows(indices[order], values[order])


def _first_of_each(ascending: np.ndarray) -> np.ndarray:
    """Returns bool[n]: whether the number before is another one."""
    first: np.ndarray = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return first


def widened(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns the values in the dtype in which they are added: f32 for f16 and bf16.

    bf16 comes as u16, which holds its bits.
    """
    if dtype is DType.F16:
        return values.astype(np.float32)
    if dtype is DType.BF16:
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values


def narrowed(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns widened() values in their own dtype again, rounded to nearest, ties to even."""
    if dtype is DType.F16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if dtype is DType.BF16:
        bits: np.ndarray = values.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return values


class Traffic(NamedTuple):
    """What a call has moved. All ranks know the same."""

    given_bytes: int  # The rows that ranks have given.
    summed_bytes: int  # The rows of the sum.

    def is_better_dealt(self, ranks: int) -> bool:
        """Whether the rows had better been dealt than gathered."""
        if self.given_bytes < _DEALT_BYTES_MIN * ranks:
            return False  # Another round trip costs more than the bytes.
        return self.given_bytes / ranks + self.summed_bytes < _DEALT_PART * self.given_bytes
