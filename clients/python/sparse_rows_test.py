# SPDX-License-Identifier: Apache-2.0
"""Rows of sparse tensors: how they travel and add up. Random ones, beside dense sums."""

from __future__ import annotations

import unittest

import numpy as np
from talweg._collectives.sparse_rows import (
    Part,
    SparseRows,
    Traffic,
    added,
    coalesced,
    dealt,
    in_order,
    index_dtype,
    packed,
    unpacked,
)
from talweg._declaration import DType
from talweg.errors import InvalidArgument

_ROWS = 40
_DTYPES = {
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(np.uint16),
    DType.I8: np.dtype(np.int8),
    DType.U64: np.dtype(np.uint64),
}


def _widened(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns the values in the dtype in which they are added. bf16 comes as u16."""
    if dtype is DType.F16:
        return values.astype(np.float32)
    if dtype is DType.BF16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def _narrowed(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns widened values in their own dtype again, rounded to nearest, ties to even."""
    if dtype is DType.F16:
        return values.astype(np.float16)
    if dtype is DType.BF16:
        bits: np.ndarray = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values


def _random(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> SparseRows:
    count = int(rng.integers(0, 60))
    indices = rng.integers(0, _ROWS, count)
    numbers = rng.integers(-50, 50, (count, *shape))
    if dtype is DType.BF16:
        return SparseRows(indices, _narrowed(numbers.astype(np.float32), dtype))
    return SparseRows(indices, numbers.astype(_DTYPES[dtype]))


def _dense(parts: list[SparseRows], dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    wide = _widened(np.empty(0, _DTYPES[dtype]), dtype).dtype
    result: np.ndarray = np.zeros((_ROWS, *shape), wide)
    for part in parts:
        for index, row in zip(part.indices, _widened(part.values, dtype)):
            result[index] = np.add(result[index], row, casting="unsafe")
    return result


class SparseRowsTest(unittest.TestCase):
    def _each(self) -> list[tuple[np.random.Generator, DType, tuple[int, ...]]]:
        rng = np.random.default_rng(7)
        shapes: list[tuple[int, ...]] = [(), (1,), (3,), (2, 5), (0,)]
        return [(rng, dtype, shape) for dtype in _DTYPES for shape in shapes for _ in range(5)]

    def test_rows_with_the_same_number_are_added(self) -> None:
        for rng, dtype, shape in self._each():
            with self.subTest(dtype=dtype, shape=shape):
                given = _random(rng, dtype, shape)
                own = coalesced(given, dtype)
                self.assertTrue(np.all(own.indices[1:] > own.indices[:-1]))
                self.assertEqual(own.values.dtype, _DTYPES[dtype])
                expected = _narrowed(_dense([given], dtype, shape)[own.indices], dtype)
                np.testing.assert_array_equal(own.values, expected)

    def test_parts_arrive_as_they_left(self) -> None:
        for rng, dtype, shape in self._each():
            for index in (np.dtype("<i4"), np.dtype("<i8")):
                parts = [
                    Part(coalesced(_random(rng, dtype, shape), dtype), given) for given in (0, 9, 3)
                ]
                data, sizes = packed(parts, index)
                self.assertEqual(data.size, sum(sizes))
                self.assertTrue(all(size % 8 == 0 for size in sizes))
                found = unpacked(data, index, _DTYPES[dtype], shape)
                for sent, got in zip(parts, found, strict=True):
                    self.assertEqual(got.given, sent.given)
                    np.testing.assert_array_equal(got.rows.indices, sent.rows.indices)
                    np.testing.assert_array_equal(got.rows.values, sent.rows.values)

    def test_the_sum_is_that_of_dense_tensors(self) -> None:
        for rng, dtype, shape in self._each():
            with self.subTest(dtype=dtype, shape=shape):
                parts = [coalesced(_random(rng, dtype, shape), dtype) for _ in range(4)]
                summed = added(parts, shape, dtype)
                given = np.unique(np.concatenate([part.indices for part in parts]))
                np.testing.assert_array_equal(summed.indices, given)
                expected = _narrowed(_dense(parts, dtype, shape)[summed.indices], dtype)
                np.testing.assert_array_equal(summed.values, expected)

    def test_dealt_rows_have_the_same_sum(self) -> None:
        for rng, dtype, shape in self._each():
            for owners in (1, 2, 3, 7):
                parts = [coalesced(_random(rng, dtype, shape), dtype) for _ in range(owners)]
                shares = [dealt(part, owners) for part in parts]
                sums = []
                for owner in range(owners):
                    sums.append(added([each[owner] for each in shares], shape, dtype))
                whole = in_order(sums)
                expected = added(parts, shape, dtype)
                np.testing.assert_array_equal(whole.indices, expected.indices)
                self.assertEqual(whole.values.tobytes(), expected.values.tobytes())

    def test_averages_divide_in_the_dtype_in_which_rows_are_added(self) -> None:
        own = SparseRows(np.array([4]), np.array([[1.0, 2.0]], np.float16))
        summed = added([own, own], (2,), DType.F16, divisor=3)
        expected = (own.values.astype(np.float32) * 2 / np.float32(3)).astype(np.float16)
        np.testing.assert_array_equal(summed.values, expected)

    def test_rows_that_do_not_ascend_are_refused(self) -> None:
        wrong = SparseRows(np.array([4, 3]), np.ones((2, 1), np.float32))
        with self.assertRaisesRegex(InvalidArgument, "do not ascend"):
            added([wrong], (1,), DType.F32)

    def test_rows_that_follow_each_other_are_dealt_evenly(self) -> None:
        for stride in (1, 2, 8, 4096):
            indices = np.arange(0, 8000 * stride, stride)
            shares = dealt(SparseRows(indices, np.empty((8000, 0))), 8)
            for share in shares:
                self.assertLess(abs(share.row_count - 1000), 200, stride)

    def test_repeated_rows_of_16_bits_are_rounded_once(self) -> None:
        for dtype, values, expected in (
            (DType.F16, np.array([2048, 1, 1], np.float16), np.float16(2050)),
            (DType.BF16, np.array([0x4380, 0x3F80, 0x3F80], np.uint16), 0x4381),  # 256 + 1 + 1.
        ):
            own = coalesced(SparseRows(np.array([7, 7, 7]), values), dtype)
            self.assertEqual(own.indices.tolist(), [7])
            self.assertEqual(own.values[0], expected)

    def test_repeated_rows_are_added_in_the_order_in_which_they_are_given(self) -> None:
        values = np.array([1e8, 1.0, -1e8, 1.0, 5.0], np.float32)
        own = coalesced(SparseRows(np.array([9, 2, 9, 2, 9]), values), DType.F32)
        expected = np.float32(np.float32(1e8) + np.float32(-1e8)) + np.float32(5)
        self.assertEqual(own.indices.tolist(), [2, 9])
        self.assertEqual(own.values.tolist(), [2.0, expected])

    def test_rows_that_lie_apart_are_added(self) -> None:
        wide: np.ndarray = np.arange(24, dtype=np.float32).reshape(4, 6)
        for order in (np.array([3, 3, 8, 8]), np.array([8, 3, 3, 8])):
            own = coalesced(SparseRows(order, wide[:, ::2]), DType.F32)
            for row, index in enumerate((3, 8)):
                expected = wide[order == index, ::2].sum(0)
                np.testing.assert_array_equal(own.values[row], expected)

    def test_numbers_of_rows_travel_in_four_bytes_where_they_fit(self) -> None:
        self.assertEqual(index_dtype(2**31), np.dtype("<i4"))
        self.assertEqual(index_dtype(2**31 + 1), np.dtype("<i8"))

    def test_rows_are_dealt_where_that_moves_less(self) -> None:
        mega = 1 << 20
        self.assertTrue(Traffic(8 * mega, mega).is_better_dealt(8))  # All give the same rows.
        self.assertFalse(Traffic(8 * mega, 8 * mega).is_better_dealt(8))  # Nobody does.
        self.assertFalse(Traffic(2 * mega, mega).is_better_dealt(2))
        self.assertFalse(Traffic(8 << 10, 1 << 10).is_better_dealt(8))  # Few bytes.


if __name__ == "__main__":
    unittest.main()
