# SPDX-License-Identifier: Apache-2.0
"""What ranks make of the control round of a collective, without ranks."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any

import numpy as np
from talweg._collectives import collectives as c
from talweg._collectives import words as words
from talweg._collectives.calls import _splits, _splits_of_each
from talweg._collectives.kinds import JOINED
from talweg._collectives.process_sets import ProcessSet
from talweg._declaration import DType, Op
from talweg.errors import InvalidArgument, Mismatch


def _group(ranks: tuple[int, ...], own: int) -> Any:
    return SimpleNamespace(ranks=ranks, size=len(ranks), place=ranks.index(own), suffix="@set")


def _given(
    kind: c.Kind, rows: c.Rows | None, part_rows: list[int], root: int = 0, op: Op = Op.BROADCAST
) -> c.Given:
    return c.Given(kind, root, rows, part_rows, 0, None, lambda rows, counts: (None, 0), op)


def _block(given: c.Given, data: bytes = b"") -> bytes:
    return words.block(given) + data


def _read(blocks: list[bytes], group: Any, inlines: bool = False) -> list[Any]:
    said = np.frombuffer(b"".join(blocks).ljust(8192, b"\0"), np.uint8)
    return words.read(said, group, inlines)


def _check(group: Any, every: list[Any]) -> Any:
    return words.check_alike("x", group, every)


_F32 = c.Rows("f32", (3,), 12)
_WHOLE = c.Rows("f32", (1000,), 4000)
_JOINED = c.Given(JOINED, -1, None, [], 0, None, lambda rows, counts: (None, 0))


class ControlRoundTest(unittest.TestCase):
    def test_ragged_rows_are_found(self) -> None:
        group = _group((2, 5), 5)
        first, second = _given(c.ALL_GATHER, _F32, [2]), _given(c.ALL_GATHER, _F32, [0])
        every = _read([_block(first, bytes(range(24))), _block(second)], group)
        self.assertEqual([said.part_rows for said in every], [(2,), (0,)])
        self.assertEqual(_check(group, every), _F32)
        self.assertEqual(words.got_parts(second, group, every), [(0, 0), (1, 0)])

    def test_data_that_is_long_does_not_lie_between_blocks(self) -> None:
        group = _group((0, 1), 0)
        long, short = _given(c.ALL_GATHER, _F32, [342]), _given(c.ALL_GATHER, _F32, [341])
        every = _read([_block(long), _block(short, bytes(341 * 12))], group)
        self.assertEqual([said.inline for said in every], [False, True])

    def test_ranks_that_have_joined_add_to_reductions(self) -> None:
        group = _group((2, 5, 7), 5)
        reduction = c.Given(
            c.ALL_REDUCE, 0, _WHOLE, [1], 0, None, _JOINED.allocate, Op.MAX, DType.F32
        )
        for inlines in (False, True):
            data = bytes(4000) if inlines else b""
            blocks = [_block(_JOINED), _block(reduction, data), _block(reduction, data)]
            every = _read(blocks, group, inlines)
            self.assertTrue(words.has_joined(every))
            stood_in = words.with_stand_ins("x", group, every)
            self.assertFalse(words.has_joined(stood_in))
            self.assertIs(stood_in[0], stood_in[1])
            self.assertEqual((stood_in[0].dtype, stood_in[0].op), (DType.F32, Op.MAX))
            self.assertEqual(stood_in[0].lane is None, inlines)
        self.assertFalse(words.has_joined(every[1:]))

    def test_ranks_that_have_joined_give_no_rows(self) -> None:
        group = _group((0, 1), 1)
        rows = _given(c.ALL_GATHER_OF_SOME, _F32, [2000])
        every = words.with_stand_ins("x", group, _read([_block(_JOINED), _block(rows)], group))
        self.assertEqual([list(said.part_rows) for said in every], [[0], [2000]])
        self.assertEqual([said.inline for said in every], [True, False])

    def test_other_calls_need_ranks_that_have_joined(self) -> None:
        group = _group((2, 5, 7), 7)
        for kind in (c.ALL_GATHER, c.ALL_TO_ALL, c.BROADCAST, c.REDUCE_SCATTER, c.BARRIER):
            given = _given(kind, _F32, [1] * kind.parts_given(2, 2, 3), root=7)
            every = _read([_block(_JOINED), _block(_JOINED), _block(given)], group, True)
            joined = "rank 7 calls .*, but ranks 2, 5 have joined"
            with self.assertRaisesRegex(Mismatch, joined) as raised:
                words.with_stand_ins("x", group, every)
            self.assertTrue(raised.exception.has_joined)

    def test_a_disagreement_names_ranks_that_have_not_joined(self) -> None:
        group = _group((2, 5, 7), 7)
        one = _given(c.ALL_GATHER_OF_SOME, _F32, [1])
        other = _given(c.ALL_GATHER, _F32, [1])
        every = _read([_block(_JOINED), _block(one, bytes(12)), _block(other)], group)
        differ = "'x@set': rank 5 calls .*, but rank 7 calls"
        with self.assertRaisesRegex(Mismatch, differ) as raised:
            words.with_stand_ins("x", group, every)
        self.assertFalse(raised.exception.has_joined)

    def test_small_reductions_lie_between_blocks_where_ranks_read_each_other(self) -> None:
        group = _group((0, 1), 0)
        small = _given(c.REDUCE_SCATTER, _F32, [1, 1], op=Op.SUM)
        large = _given(c.REDUCE_SCATTER, _F32, [300, 300], op=Op.SUM)
        every = _read([_block(small, bytes(24)), _block(large)], group, True)
        self.assertEqual([said.inline for said in every], [True, False])
        self.assertEqual([said.lane is None for said in every], [True, False])
        self.assertTrue(all(said.lane is not None for said in _read([_block(large)] * 2, group)))

    def test_a_reduction_is_cut_alike(self) -> None:
        group = _group((2, 5), 5)
        one = _given(c.REDUCE_SCATTER, _F32, [2, 0], op=Op.SUM)
        other = _given(c.REDUCE_SCATTER, _F32, [1, 1], op=Op.SUM)
        with self.assertRaisesRegex(Mismatch, r"in parts of \[2, 0\], but rank 5 in .* \[1, 1\]"):
            _check(group, _read([_block(one), _block(other)], group))

    def test_rows_of_any_shape_fit_those_of_as_many_bytes(self) -> None:
        group = _group((2, 5, 7), 5)
        flat, cube = c.Rows("f32", (12,), 48, True), c.Rows("f32", (2, 2, 3), 48)
        square, double = c.Rows("f32", (3, 4), 48), c.Rows("f64", (6,), 48, True)

        def read(*rows: c.Rows) -> list[Any]:
            blocks = [_block(_given(c.ALL_GATHER, each, [1]), bytes(48)) for each in rows]
            return _read(blocks, group)

        every = read(flat, cube, flat)
        self.assertEqual([said.rows for said in every], [flat, cube, flat])
        self.assertEqual(_check(group, every), flat)
        for rows, text in (
            ((cube, flat, square), "[2, 2, 3], but rank 7 calls all_gather of f32 rows of [3, 4]"),
            ((flat, flat, double), "f32 rows of [12], but rank 7 calls all_gather of f64 rows"),
        ):
            with self.assertRaisesRegex(Mismatch, text.replace("[", r"\[")):
                _check(group, read(*rows))

    def test_the_lines_of_those_that_differ_are_named(self) -> None:
        group = _group((2, 5, 7), 5)
        wide = c.Rows("f32", (4,), 16)
        calls = [_given(c.GATHER, each, [1], 2) for each in (_F32, _F32, wide)]
        blocks = [_block(each, bytes(n)) for each, n in zip(calls, (12, 12, 16))]
        every = _read(blocks, group)
        for sites, text in (
            (["a.py:1", "b.py:2", "c.py:3"], r"order \(rank 2 at a.py:1, rank 7 at c.py:3\)$"),
            (["a.py:1", "b.py:2", ""], r"order \(rank 2 at a.py:1\)$"),
            ([], "order$"),
        ):
            who = [words.Caller(site=site) for site in sites]
            with self.assertRaisesRegex(Mismatch, text):
                words.check_alike("x", group, every, None, who)

    def test_the_functions_are_named_that_programs_have_called(self) -> None:
        group = _group((2, 5), 5)
        calls = [_given(c.ALL_REDUCE, c.Rows("f32", (n,), 4 * n), [1], op=Op.SUM) for n in (3, 4)]
        every = _read([_block(each) for each in calls], group)
        for names, text in (
            (
                ("push_pull", "grouped_push_pull"),
                "2 calls push_pull sum .* 5 calls grouped_push_pull ",
            ),
            (("", "push_pull"), "2 calls all_reduce sum .* 5 calls push_pull sum "),
        ):
            who = [words.Caller(each) for each in names]
            with self.assertRaisesRegex(Mismatch, text):
                words.check_alike("x", group, every, None, who)

    def test_what_differs_is_named(self) -> None:
        group = _group((2, 5), 5)
        wide = c.Rows("f32", (4,), 16)
        maximum = _given(c.REDUCE_SCATTER, _F32, [1, 0], op=Op.MAX)
        total = _given(c.REDUCE_SCATTER, _F32, [1, 0], op=Op.SUM)
        more = _given(c.REDUCE_SCATTER, _F32, [1, 1], op=Op.SUM)
        gather = _given(c.ALL_GATHER, _F32, [1])
        for one, other, text in (
            (gather, _given(c.ALL_GATHER, wide, [1]), "f32 rows of [3], but rank 5 calls"),
            (total, maximum, "sum of f32[1, 3], but rank 5 calls reduce_scatter max"),
            (total, more, "rank 5 calls reduce_scatter sum of f32[2, 3]"),
            (_given(c.GATHER, _F32, [1], 2), _given(c.GATHER, _F32, [1], 5), "with root 5"),
            (gather, total, "rank 2 calls all_gather of"),
        ):
            blocks = [
                _block(each, b"" if each.kind.reduces else bytes(each.rows.row_bytes))
                for each in (one, other)
                if each.rows is not None
            ]
            with self.assertRaisesRegex(Mismatch, text.replace("[", r"\[")):
                _check(group, _read(blocks, group))

    def test_ranks_of_a_scatter_that_have_no_tensor_fit_any(self) -> None:
        group = _group((0, 1, 2), 2)
        none = _given(c.SCATTER, None, [], 1)
        root = _given(c.SCATTER, _F32, [1, 1, 1], 1)
        every = _read([_block(none), _block(root, bytes(36)), _block(none)], group)
        self.assertEqual(_check(group, every), _F32)
        self.assertEqual(words.got_parts(none, group, every), [(1, 2)])
        with self.assertRaisesRegex(Mismatch, "with root 0"):
            other = _given(c.SCATTER, None, [], 0)
            _check(group, _read([_block(none), _block(root, bytes(36)), _block(other)], group))


class SplitsTest(unittest.TestCase):
    def test_the_first_parts_have_the_remainder(self) -> None:
        self.assertEqual(c.split_evenly(7, 3), [3, 2, 2])
        self.assertEqual(c.split_evenly(1, 3), [1, 0, 0])

    def test_splits_add_up(self) -> None:
        self.assertEqual(_splits([0, 3], 3, 2, "all_to_all"), [0, 3])
        for wrong in ([1, 1], [4, -1], [3]):
            with self.assertRaisesRegex(InvalidArgument, "add up to the tensor's 3 rows"):
                _splits(wrong, 3, 2, "all_to_all")
        with self.assertRaisesRegex(InvalidArgument, "3 rows do not divide among 2"):
            _splits(None, 3, 2, "all_to_all")

    def test_each_tensor_has_its_splits(self) -> None:
        self.assertEqual(_splits_of_each(None, [1, 2], "all_to_all"), [None, None])
        given: list[Any] = [np.ones((2, 3), np.int64), [[1, 1, 1], None]]
        for every in given:
            self.assertEqual(len(_splits_of_each(every, [1, 2], "all_to_all")), 2)
        with self.assertRaisesRegex(InvalidArgument, "0 lists of splits for 2 tensors"):
            _splits_of_each([], [1, 2], "all_to_all")


class ProcessSetTest(unittest.TestCase):
    def test_ranks_are_sorted(self) -> None:
        self.assertEqual(ProcessSet([3, 1]).ranks, (1, 3))
        self.assertEqual(ProcessSet([3, 1]), ProcessSet((1, 3)))

    def test_long_lists_have_short_suffixes_of_their_own(self) -> None:
        one, other = ProcessSet(range(500)), ProcessSet([*range(499), 500])
        self.assertLess(len(one.suffix), 64)
        self.assertNotEqual(one.suffix, other.suffix)

    def test_dtypes_know_their_size(self) -> None:
        self.assertEqual([DType.F32.nbytes, DType.BF16.nbytes, DType.BOOL.nbytes], [4, 2, 1])


if __name__ == "__main__":
    unittest.main()
