# SPDX-License-Identifier: Apache-2.0
"""Computes the result that a round must give, in NumPy, by the rules of docs/arithmetic.md.

NumPy has no bf16. Its arrays are uint16 here, and integer arithmetic converts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np

DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "i16": np.dtype(np.int16),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
FLOATS = ("f32", "f64", "f16", "bf16")
_NUMBERS = tuple(dtype for dtype in DTYPES if dtype != "bool")
_NO_FLOATS = tuple(dtype for dtype in DTYPES if dtype not in FLOATS)
# The dtypes for which each operation is defined.
OPS: dict[str, tuple[str, ...]] = {
    "sum": _NUMBERS,
    "average": FLOATS,
    "min": tuple(DTYPES),
    "max": tuple(DTYPES),
    "product": _NUMBERS,
    "broadcast": tuple(DTYPES),
    "bit_and": _NO_FLOATS,
    "bit_or": _NO_FLOATS,
    "bit_xor": _NO_FLOATS,
}


def widen(values: np.ndarray, dtype: str) -> np.ndarray:
    """Returns values in the dtype in which they are combined: float32 for 16-bit floats."""
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if dtype == "f16" else values


def narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds values once, to nearest, ties to even."""
    if dtype == "bf16":
        bits: np.ndarray = values.view(np.uint32)
        rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = np.isnan(values)
        return np.where(quiet, 0x7FC0, rounded).astype(np.uint16)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    return values


def _min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    result = np.minimum(a, b)
    if a.dtype.kind == "f":  # -0 counts as less than +0, in any order.
        zeros = (a == 0) & (b == 0)
        result = np.where(zeros & (np.signbit(a) | np.signbit(b)), np.negative(np.abs(a)), result)
    return result


def _max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    result = np.maximum(a, b)
    if a.dtype.kind == "f":
        zeros = (a == 0) & (b == 0)
        result = np.where(zeros & ~(np.signbit(a) & np.signbit(b)), np.abs(a), result)
    return result


_COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "sum": np.add,
    "average": np.add,
    "min": _min,
    "max": _max,
    "product": np.multiply,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
}


def _combine(values: Sequence[np.ndarray], op: str) -> np.ndarray:
    total = values[0]
    with np.errstate(all="ignore"):
        for value in values[1:]:
            total = _COMBINE[op](total, value)
    return total


def expected(ranks: Sequence[np.ndarray], nodes: Sequence[int], dtype: str, op: str) -> np.ndarray:
    """Returns the result of a round of `ranks`' arrays. Node i has the next `nodes[i]` of them."""
    if op == "broadcast":
        return ranks[0]
    contributions: list[np.ndarray] = []
    first = 0
    means = op == "average" and dtype in ("f16", "bf16")
    for count in nodes:
        node = _combine([widen(array, dtype) for array in ranks[first : first + count]], op)
        first += count
        if means and count > 1:
            node = (node / np.float32(count)).astype(np.float32)
        contributions.append(narrow(node, dtype))
    wide = [widen(array, dtype) for array in contributions]
    if means and len(nodes) > 1:
        wide = [(array * np.float32(count)).astype(np.float32) for array, count in zip(wide, nodes)]
    if len(wide) > 1:
        result = _combine(wide, op)
        if means:
            result = (result / np.float32(len(ranks))).astype(np.float32)
        result = narrow(result, dtype)
    else:
        result = contributions[0]
    if op == "average" and not means:
        result = (result / result.dtype.type(len(ranks))).astype(result.dtype)
    return result


def same(actual: np.ndarray, wanted: np.ndarray, dtype: str) -> bool:
    """Whether arrays are equal in bits. A NaN is equal to any NaN."""
    raw = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[actual.dtype.itemsize]
    equal = actual.view(raw) == wanted.view(raw)
    if equal.all() or dtype not in FLOATS:
        return bool(equal.all())
    both_nan = np.isnan(widen(actual, dtype)) & np.isnan(widen(wanted, dtype))
    return bool((equal | both_nan).all())


def sample(rng: np.random.Generator, count: int, dtype: str) -> np.ndarray:
    """Returns values of many magnitudes, with some infinities, NaNs, denormals and -0."""
    if dtype == "bool":
        return rng.random(count) < 0.5
    if dtype not in FLOATS:
        info = np.iinfo(DTYPES[dtype])
        return rng.integers(info.min, info.max, count, dtype=DTYPES[dtype], endpoint=True)
    values = rng.standard_normal(count).astype(np.float32)
    values *= np.float32(2.0) ** rng.integers(-6, 6, count).astype(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 6e4], dtype=np.float32)
    where = rng.random(count) < 0.01
    values[where] = rng.choice(special, int(where.sum()))
    if dtype in ("f16", "bf16"):
        return narrow(values, dtype)
    return values.astype(DTYPES[dtype])
