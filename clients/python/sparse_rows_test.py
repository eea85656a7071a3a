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
    narrowed,
    packed,
    unpacked,
    widened,
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


def _random(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> SparseRows:
    count = int(rng.integers(0, 60))
    indices = rng.integers(0, _ROWS, count)
    numbers = rng.integers(-50, 50, (count, *shape))
    if dtype is DType.BF16:
        return SparseRows(indices, narrowed(numbers.astype(np.float32), dtype))
    return SparseRows(indices, numbers.astype(_DTYPES[dtype]))


def _dense(parts: list[SparseRows], dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    wide = widened(np.empty(0, _DTYPES[dtype]), dtype).dtype
    result: np.ndarray = np.zeros((_ROWS, *shape), wide)
    for part in parts:
        for index, row in zip(part.indices, widened(part.values, dtype)):
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
                expected = narrowed(_dense([given], dtype, shape)[own.indices], dtype)
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
                expected = narrowed(_dense(parts, dtype, shape)[summed.indices], dtype)
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
        wrong = SparseRows(np.array([4, 4]), np.ones((2, 1), np.float32))
        with self.assertRaisesRegex(InvalidArgument, "do not ascend"):
            added([wrong], (1,), DType.F32)

    def test_rows_that_follow_each_other_are_dealt_evenly(self) -> None:
        for stride in (1, 2, 8, 4096):
            indices = np.arange(0, 8000 * stride, stride)
            shares = dealt(SparseRows(indices, np.empty((8000, 0))), 8)
            for share in shares:
                self.assertLess(abs(share.row_count - 1000), 200, stride)

    def test_bf16_is_rounded_to_nearest_ties_to_even(self) -> None:
        bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7FC00001, 0x7F7FFFFF])
        got = narrowed(bits.astype(np.uint32).view(np.float32), DType.BF16)
        self.assertEqual(
            [hex(each) for each in got],
            ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0x7fc0", "0x7f80"],
        )

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
