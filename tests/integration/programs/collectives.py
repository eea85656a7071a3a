# SPDX-License-Identifier: Apache-2.0
"""One rank of collectives_test.py, for NumPy arrays. Each function is a case."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import talweg
from cases import run_cases
from expected_errors import expect
from numeric_reference import DTYPES, OPS, expected, same, sample
from talweg._collectives import kinds
from talweg._collectives.numpy_calls import NumpyArrays

_NODES: list[int] = json.loads(sys.argv[1])
_NUMPY = {name: dtype for name, dtype in DTYPES.items() if name != "bf16"}


def _places(ranks: tuple[int, ...]) -> list[int]:
    """Returns how many of `ranks` each node has, without nodes that have none."""
    counts, first = [], 0
    for count in _NODES:
        counts.append(sum(first <= rank < first + count for rank in ranks))
        first += count
    return [count for count in counts if count > 0]


def _sets() -> list[tuple[talweg.ProcessSet | None, tuple[int, ...]]]:
    size = talweg.size()
    wanted: list[tuple[int, ...]] = [(0, size - 1), tuple(range(1, size)), (0,), (size - 1,)]
    if size > 2:
        wanted += [(0, 1), (1, 2)]
    return [(None, tuple(range(size)))] + [(talweg.ProcessSet(ranks), ranks) for ranks in wanted]


def _of(seed: list[int], ranks: tuple[int, ...], shape: Any, dtype: str) -> list[np.ndarray]:
    """Returns every rank's array. They have one shape, or one for each rank in a list."""
    arrays = []
    for place, rank in enumerate(ranks):
        own = shape[place] if isinstance(shape, list) else shape
        values = sample(np.random.default_rng([*seed, rank]), int(np.prod(own)), dtype)
        arrays.append(values.reshape(own))
    return arrays


def _check(actual: np.ndarray, wanted: np.ndarray, dtype: str, what: str) -> None:
    assert actual.dtype == wanted.dtype and actual.shape == wanted.shape, (
        f"{what}: {actual.dtype}{actual.shape} is not {wanted.dtype}{wanted.shape}"
    )
    left, right = np.ascontiguousarray(actual), np.ascontiguousarray(wanted)
    assert same(left.reshape(-1), right.reshape(-1), dtype), f"{what} {dtype}: {left} not {right}"


# No element, a few, more than travel with the control round, and a tensor of several pieces.
_COUNTS = (0, 3, 700, 30_000)


def copies_of_every_dtype() -> None:
    rank = talweg.rank()
    for number, (process_set, ranks) in enumerate(_sets()):
        if rank not in ranks:
            continue
        root, n, place = ranks[number % len(ranks)], len(ranks), ranks.index(rank)
        for count in _COUNTS if number < 2 else (700,):
            for dtype in _NUMPY if count == 700 and number == 0 else ("f32", "u8"):
                seed = [1, number, count]
                each = _of(seed, ranks, [((r + 1) % 3 * (count > 0), count) for r in ranks], dtype)
                mine, what = each[place], f"{ranks} {count}"
                gathered = talweg.all_gather(mine, process_set=process_set)
                _check(gathered, np.concatenate(each), dtype, f"all_gather {what}")

                at_root = talweg.gather(mine, root, process_set=process_set)
                assert (at_root is not None) == (rank == root)
                if at_root is not None:
                    _check(at_root, np.concatenate(each), dtype, f"gather {what}")

                even = _of(seed, ranks, (2, count), dtype)
                out = np.empty((2 * n, count), DTYPES[dtype])
                assert talweg.all_gather_into(out, even[place], process_set=process_set) is out
                _check(out, np.concatenate(even), dtype, f"all_gather_into {what}")

                whole = _of(seed, (root,), (2 * n + 1, count), dtype)[0]
                part = talweg.scatter(
                    whole if rank == root else None, root, process_set=process_set
                )
                _check(part, np.array_split(whole, n)[place], dtype, f"scatter {what}")
                splits = [(i + 1) % 2 for i in range(n - 1)]
                splits.append(2 * n + 1 - sum(splits))
                ends = np.cumsum(splits)[:-1]
                part = talweg.scatter(
                    whole if rank == root else None, root, splits, process_set=process_set
                )
                _check(part, np.split(whole, ends)[place], dtype, f"scatter {splits} {what}")

                table = [[(giver + taker) % 3 for taker in ranks] for giver in ranks]
                rows = _of(seed, ranks, [(sum(row), count) for row in table], dtype)
                taken, counts = talweg.all_to_all(
                    rows[place], table[place], process_set=process_set
                )
                assert counts == [row[place] for row in table], counts
                wanted = [np.split(rows[i], np.cumsum(table[i])[:-1])[place] for i in range(n)]
                _check(taken, np.concatenate(wanted), dtype, f"all_to_all {what}")

                copied = whole.copy() if rank == root else np.empty_like(whole)
                talweg.broadcast(copied, root, process_set=process_set)
                _check(copied, whole, dtype, f"broadcast {what}")


def complex_numbers() -> None:
    own: np.ndarray = np.full((talweg.rank(), 2), talweg.rank() + 1j, np.complex64)
    every = talweg.all_gather(own)
    assert every.dtype == np.complex64
    assert every[:, 0].tolist() == [r + 1j for r in range(talweg.size()) for _ in range(r)]
    rank, n = talweg.rank(), talweg.size()
    total, places = n * (n - 1) / 2, slice(rank, None, n)
    for dtype in (np.complex64, np.complex128):
        for count in (0, 1, 3000):
            mine: np.ndarray = np.full((n, count), rank - 2j * rank, dtype)[:, ::-1]
            wanted: np.ndarray = np.full((n, count), total - 2j * total, dtype)
            for name in (None, f"complex {count} {np.dtype(dtype)}"):
                for op, result in ((talweg.Op.SUM, wanted), (talweg.Op.AVERAGE, wanted / n)):
                    each = None if name is None else f"{name} {op.name}"
                    _check_complex(talweg.push_pull(mine, each, op), result)
                    _check_complex(talweg.reduce_scatter(mine, each, op), result[places])
                    at_root = talweg.reduce(mine, n - 1, each, op)
                    assert (at_root is None) == (rank < n - 1)
                    if at_root is not None:
                        _check_complex(at_root, result)
                    [grouped] = talweg.grouped_push_pull([mine], each and f"{each} group", op)
                    _check_complex(grouped, result)
                copied = np.array(mine)
                talweg.broadcast(copied, n - 1, name)
                _check_complex(copied, np.full((n, count), (n - 1) * (1 - 2j), dtype))
    no_order: np.ndarray = np.ones(2, np.complex64)
    for call in (talweg.push_pull, talweg.reduce, talweg.reduce_scatter):
        text = "max is not defined for complex64"
        expect(talweg.InvalidArgument, text, call, no_order, op=talweg.Op.MAX)
    number = np.array(1 + rank * 1j)
    assert talweg.push_pull(number, op=talweg.Op.SUM) == n + total * 1j


def _check_complex(actual: np.ndarray, wanted: np.ndarray) -> None:
    assert actual.dtype == wanted.dtype and actual.shape == wanted.shape, (actual, wanted)
    assert (actual == wanted).all(), (actual, wanted)


def reductions_of_every_dtype() -> None:
    rank = talweg.rank()
    for number, (process_set, ranks) in enumerate(_sets()):
        if rank not in ranks:
            continue
        root, n, place = ranks[number % len(ranks)], len(ranks), ranks.index(rank)
        nodes = _places(ranks)
        for op, dtypes in OPS.items():
            if op == "broadcast" or (number > 0 and op not in ("sum", "average", "max")):
                continue
            for dtype in dtypes if number == 0 else dtypes[:1]:
                if dtype == "bf16":
                    continue
                for rows in (0, 1, 2 * n + 1) if dtype == dtypes[0] else (2 * n + 1,):
                    each = _of([2, number, rows], ranks, (rows, 37), dtype)
                    flat = [array.reshape(-1) for array in each]
                    wanted = expected(flat, nodes, dtype, op).reshape(rows, 37)
                    own, how = each[place], talweg.Op[op.upper()]
                    what = f"{op} {rows} of {ranks}"
                    part = talweg.reduce_scatter(own, op=how, process_set=process_set)
                    _check(part, np.array_split(wanted, n)[place], dtype, f"reduce_scatter {what}")
                    total = talweg.reduce(own, root, op=how, process_set=process_set)
                    assert (total is not None) == (rank == root)
                    if total is not None:
                        _check(total, wanted, dtype, f"reduce {what}")
                    both = talweg.push_pull(own, op=how, process_set=process_set)
                    _check(both, wanted, dtype, f"push_pull {what}")


def _small_tensors() -> Any:
    """A context in which data of more than 4096 bytes a rank takes several rounds."""
    nbytes = 4096 * talweg.size()
    return mock.patch.multiple(
        kinds, _TENSOR_BYTES_MAX=nbytes, _REDUCED_BYTES_MAX=nbytes, _COPIED_BYTES_MAX=nbytes
    )


def several_pieces() -> None:
    """Tensors are longer than the memory that they go through."""
    rank, n = talweg.rank(), talweg.size()
    ranks = tuple(range(n))
    with _small_tensors():
        each = _of([3], ranks, [(r * 5000 + 1,) for r in ranks], "f32")
        _check(talweg.all_gather(each[rank], "pieces"), np.concatenate(each), "f32", "pieces")
        even = _of([4], ranks, (20_001,), "i32")
        part = talweg.reduce_scatter(even[rank], "pieces", talweg.Op.SUM)
        total = expected(even, _NODES, "i32", "sum")
        _check(part, np.array_split(total, n)[rank], "i32", "pieces")
        table = [[(giver * 3 + taker) % 4 * 1500 for taker in ranks] for giver in ranks]
        rows = _of([5], ranks, [(sum(row), 2) for row in table], "f32")
        taken, _ = talweg.all_to_all(rows[rank], table[rank], "pieces")
        wanted = [np.split(rows[i], np.cumsum(table[i])[:-1])[rank] for i in range(n)]
        _check(taken, np.concatenate(wanted), "f32", "pieces")
    for _ in range(2):  # The second time the result lies below the memory that ranks share.
        long = talweg.all_gather(np.full(1000 if rank else 9_000_000, rank, np.float32), "long")
        assert not long[:9_000_000].any() and long[-1] == n - 1


def factors() -> None:
    rank, n = talweg.rank(), talweg.size()
    own: np.ndarray = np.arange(60, dtype=np.float16).reshape(20, 3) + np.float16(rank)
    ranks = []
    for other in range(n):
        theirs = own - np.float16(rank) + np.float16(other)
        scaled = (theirs.astype(np.float32) * np.float32(0.3)).astype(np.float16)
        ranks.append(scaled.reshape(-1))
    total = expected(ranks, _NODES, "f16", "sum").reshape(20, 3)
    wanted = (total.astype(np.float32) * np.float32(1.7)).astype(np.float16)
    keywords: Any = {"op": talweg.Op.SUM, "prescale_factor": 0.3, "postscale_factor": 1.7}
    _check(talweg.push_pull(own, **keywords), wanted, "f16", "push_pull with factors")
    part = talweg.reduce_scatter(own, **keywords)
    _check(part, np.array_split(wanted, n)[rank], "f16", "reduce_scatter with factors")
    in_place = own.copy()
    talweg.push_pull_inplace(in_place, **keywords)
    _check(in_place, wanted, "f16", "in place with factors")
    ints: np.ndarray = np.full(5, 7, np.int32)
    assert (talweg.push_pull(ints, op=talweg.Op.SUM, prescale_factor=0.5) == 3 * n).all()
    flags: np.ndarray = np.ones(2, np.bool_)
    expect(
        talweg.InvalidArgument,
        "not scaled",
        talweg.push_pull,
        flags,
        op=talweg.Op.MAX,
        prescale_factor=2,
    )


def between_two_ranks() -> None:
    rank, last = talweg.rank(), talweg.size() - 1
    for count in (0, 5, 9000):
        wanted: np.ndarray = np.arange(count, dtype=np.float64)
        if rank == 0:
            talweg.send(wanted, last)
            talweg.send(wanted, last)
            handle = talweg.send_async(wanted, last)
            assert (talweg.recv(np.empty(count), last) == wanted + 1).all()
            talweg.synchronize(handle)
            _messages_that_are_open(last, wanted, is_first=True)
        elif rank == last:
            _check(talweg.recv(None, 0), wanted, "f64", "recv")
            _check(talweg.recv((count,), 0, np.float64), wanted, "f64", "recv of a shape")
            talweg.send(wanted + 1, 0)  # Messages go in both directions at once.
            filled: np.ndarray = np.empty(count)
            assert talweg.recv(filled, 0) is filled
            _check(filled, wanted, "f64", "recv into an array")
            _messages_that_are_open(0, wanted, is_first=False)
    if rank == 0:
        expect(talweg.Mismatch, "send of f32[2]", talweg.send, np.ones(2, np.float32), last)
        expect(talweg.InvalidArgument, "this one", talweg.send, wanted, 0)
    elif rank == last:
        expect(talweg.Mismatch, "recv of f64[3]", talweg.recv, np.ones(3), 0)


def _messages_that_are_open(peer: int, wanted: np.ndarray, is_first: bool) -> None:
    """Both ranks have all receives open before either sends. Each takes the message of its turn."""
    sent, taken = (wanted, wanted * 2) if is_first else (wanted * 2, wanted)
    filled, named = np.empty_like(wanted), np.empty_like(wanted)
    open_ = [
        talweg.recv_async(filled, peer),
        talweg.recv_async(None, peer),
        talweg.recv_async(wanted.shape, peer, np.float64),
        talweg.recv_async(named, peer, name="letter"),
    ]
    sends = []
    for name, given in ((None, +sent), (None, -sent), (None, +sent), ("letter", sent + 1)):
        sends.append(talweg.send_async(given, peer, name))
        given[:] = -1  # The call has its own copy.
    results = [talweg.synchronize(handle) for handle in reversed(open_)][::-1]
    assert results[0] is filled and results[3] is named
    for result, wanted_now in zip(results, (taken, -taken, taken, taken + 1)):
        _check(result, wanted_now, "f64", "recv_async")
    for handle in sends:
        assert talweg.synchronize(handle) is None
        assert talweg.poll(handle)


def who_may_not_call() -> None:
    size = talweg.size()
    alone = talweg.ProcessSet([size - 1])
    ones: np.ndarray = np.ones(2, np.float32)
    assert alone.size() == 1 and alone.ranks == (size - 1,)
    if alone.included():
        assert alone.rank() == 0
        talweg.barrier(alone)
        expect(
            talweg.InvalidArgument,
            "root_rank is 0, which is not in ProcessSet",
            talweg.gather,
            ones,
            0,
            process_set=alone,
        )
        if size > 1:
            expect(
                talweg.InvalidArgument,
                "root_rank is 0",
                talweg.broadcast,
                ones,
                0,
                process_set=alone,
            )
    else:
        text = f"rank {talweg.rank()} is not in ProcessSet([{size - 1}])"
        for operation, call in (
            ("push_pull", talweg.push_pull),
            ("broadcast", talweg.broadcast),
            ("all_gather", talweg.all_gather),
            ("reduce_scatter", talweg.reduce_scatter),
            ("all_to_all", talweg.all_to_all),
            ("gather", talweg.gather),
            ("scatter", talweg.scatter),
            ("reduce", talweg.reduce),
        ):
            expect(talweg.InvalidArgument, f"{operation}: {text}", call, ones, process_set=alone)
        expect(talweg.InvalidArgument, f"barrier: {text}", talweg.barrier, alone)
        expect(talweg.InvalidArgument, text, alone.rank)
    beyond = talweg.ProcessSet([0, size])
    expect(talweg.InvalidArgument, f"has rank {size}", talweg.barrier, beyond)
    expect(talweg.InvalidArgument, "twice", talweg.ProcessSet, [1, 1])
    expect(talweg.InvalidArgument, "one rank or more", talweg.ProcessSet, [])
    expect(talweg.InvalidArgument, "not int", talweg.all_gather, ones, 7)
    before = talweg.pushed_bytes()
    talweg.all_gather(ones)
    assert talweg.pushed_bytes() == before + 8
    expect(talweg.InvalidArgument, "reshape(1)", talweg.all_gather, np.array(1.0))
    expect(talweg.InvalidArgument, "add up", talweg.all_to_all, ones, [2] * size)
    expect(talweg.InvalidArgument, "need f64[", talweg.all_gather_into, ones, np.ones(7))


def arguments_of_the_wrong_kind() -> None:
    """Each wrong argument is refused with an error that names it, and nothing is pushed."""
    rank, n = talweg.rank(), talweg.size()
    ones: np.ndarray = np.ones(n, np.float32)
    wrong, peer = talweg.InvalidArgument, (rank + 1) % n
    calls = [
        *(talweg.all_gather, talweg.reduce_scatter, talweg.all_to_all, talweg.gather),
        *(talweg.reduce, talweg.push_pull),
    ]
    for call in calls:
        expect(wrong, "numpy.ndarray, got list", call, [1.0])
        expect(wrong, "priority is 1.5", call, ones, priority=1.5)
        expect(wrong, "priority is None", call, ones, priority=None)
        expect(wrong, "timeout_s is '1'", call, ones, timeout_s="1")
    for call in (talweg.gather, talweg.reduce, talweg.scatter, talweg.broadcast):
        for root in (0.0, "0", None):
            text = f"root_rank is {root!r}; it must be a whole number"
            expect(talweg.WrongType, text, call, ones, root)
        for root in (-1, n):
            expect(wrong, f"root_rank is {root!r}, which", call, ones, root)
    for call in (talweg.push_pull, talweg.reduce_scatter):
        expect(wrong, "too large", call, ones, prescale_factor=10**400)
    for splits, words in ((4, "splits is 4"), ("11", "'11'"), ([0.5] * n, "0.5"), ([None], "None")):
        expect(wrong, words, talweg.all_to_all, ones, splits)
    expect(wrong, "got list", talweg.synchronize, [1])
    expect(wrong, "got NoneType", talweg.poll, None)
    for ranks in (None, 5, "01", [0.5]):
        expect(wrong, "whole numbers", talweg.ProcessSet, ranks)
    for call in (
        *(talweg.grouped_all_gather, talweg.grouped_reduce_scatter, talweg.grouped_all_to_all),
        talweg.grouped_push_pull,
    ):
        expect(wrong, f"{call.__name__}: expected a list of tensors, got int", call, 5)
    expect(wrong, "a str, not int", talweg.grouped_push_pull, [ones], name=5)
    expect(wrong, "a str, not int", talweg.broadcast_object, 1, name=5)
    expect(wrong, "a str, not int", talweg.all_gather_object, 1, name=5)
    expect(wrong, "count is '3'", talweg.declare, "count", np.float32, "3")
    expect(wrong, "timeout_s is -1", talweg.grouped_push_pull, [ones], timeout_s=-1)
    for call in (talweg.broadcast, talweg.push_pull_inplace):
        expect(wrong, "which list is not", call, [1.0])
        expect(wrong, "ascontiguousarray", call, np.ones((2, 3))[:, ::2])
    expect(wrong, "broadcast writes", talweg.broadcast, [1.0])
    dimensions: np.ndarray = np.ones((1,) * 13)
    expect(wrong, "of 13 dimensions; it may have 12", talweg.all_gather, dimensions)
    if n > 1:
        expect(wrong, "send: dst is '1'", talweg.send, ones, "1")
        expect(wrong, "recv: src is None", talweg.recv, None, None)
        expect(wrong, "a str, not bytes", talweg.send, ones, peer, b"x")
        expect(wrong, "dtype nope", talweg.recv, (4,), peer, "nope")
        expect(wrong, "dimension below 0", talweg.recv, (-1,), peer, np.float32)
        expect(wrong, "a dimension is 1.5", talweg.recv, (1.5,), peer, np.float32)
        expect(wrong, "which int is not", talweg.recv, 5, peer, np.float32)
    assert talweg.all_gather(np.array([rank])).tolist() == list(range(n))


def generators_of_tensors() -> None:
    """A generator may give the tensors of a grouped call."""
    n = talweg.size()
    arrays: list[np.ndarray] = [np.full((n, 2), i, np.float32) for i in range(3)]
    for name in (None, "generated"):
        assert len(talweg.grouped_all_gather((a for a in arrays), name)) == 3
        assert len(talweg.grouped_reduce_scatter((a for a in arrays), name)) == 3
        assert len(talweg.grouped_all_to_all((a for a in arrays), name=name)) == 3
        totals = talweg.grouped_push_pull((a for a in arrays), name)
        assert [total[0, 0] for total in totals] == [0, 1, 2]


def opposite_orders_of_different_sets() -> None:
    """Calls of different sets and of different names run at once, and none waits for another."""
    rank, last, n = talweg.rank(), talweg.size() - 1, talweg.size()
    pair = talweg.ProcessSet([0, last])
    is_backward = rank == last
    for count in (4, 40_000):
        own: np.ndarray = np.full(count, rank, np.int32)

        def of_all(own: np.ndarray = own) -> talweg.Handle:
            return talweg.all_gather_async(own)

        def named(own: np.ndarray = own) -> talweg.Handle:
            return talweg.reduce_scatter_async(own, "opposite", talweg.Op.SUM)

        def of_pair(own: np.ndarray = own) -> talweg.Handle:
            return talweg.all_gather_async(own, process_set=pair)

        starts = [of_all, named, *([of_pair] if pair.included() else [])]
        order = list(range(len(starts)))[:: -1 if is_backward else 1]
        handles = {}
        for index in order:
            handles[index] = starts[index]()
        # They end in the opposite order.
        results = {index: talweg.synchronize(handles[index]) for index in reversed(order)}
        assert results[0].shape == (n * count,) and results[0][-1] == last
        assert (results[1] == n * last // 2).all()
        if pair.included():
            assert results[2].shape == (count * pair.size(),) and results[2][-1] == last


def many_open_handles() -> None:
    rank, n = talweg.rank(), talweg.size()
    handles = [
        talweg.all_gather_async(np.full((rank + i % 3, 300 * (i % 7)), i, np.int32))
        for i in range(60)
    ]
    blocking = talweg.all_gather(np.array([rank]))
    assert blocking.tolist() == list(range(n))
    for i, handle in reversed(list(enumerate(handles))):
        assert talweg.poll(handle)
        result = talweg.synchronize(handle)
        assert result.shape == (sum(r + i % 3 for r in range(n)), 300 * (i % 7)), i
        assert (result == i).all()
    arrays: list[np.ndarray] = [np.full((rank, 2), i, np.float32) for i in range(5)]
    for i, result in enumerate(talweg.grouped_all_gather(arrays)):
        assert result.shape == (n * (n - 1) // 2, 2) and (result == i).all()
    many: list[np.ndarray] = [np.full(3, i + 1, np.int64) for i in range(3)]
    totals = talweg.synchronize(talweg.grouped_push_pull_async(many, "grouped", talweg.Op.SUM))
    assert [int(total[0]) for total in totals] == [n, 2 * n, 3 * n]
    pairs = talweg.synchronize(talweg.grouped_all_to_all_async([np.full(n, rank)] * 2))
    assert all(result.tolist() == list(range(n)) for result, _ in pairs)
    parts = talweg.grouped_reduce_scatter([np.ones((n, 2), np.int32)] * 2, op=talweg.Op.SUM)
    assert all((part == n).all() and part.shape == (1, 2) for part in parts)


def mismatches_then_a_good_round() -> None:
    rank, last = talweg.rank(), talweg.size() - 1
    if last == 0:
        return
    odd = rank == last
    mismatch, n = talweg.Mismatch, talweg.size()

    def good() -> None:
        assert talweg.all_gather(np.array([rank])).tolist() == list(range(n))

    dtype = np.float64 if odd else np.float32
    for count in (3, 5000):
        text = f"rank 0 calls all_gather of f32 rows of [{count}], but rank {last} calls all_gather"
        expect(mismatch, text, talweg.all_gather, np.ones((1, count), dtype))
        good()
        expect(mismatch, "rows of", talweg.all_gather, np.ones((2, count + odd)))
        good()
        expect(mismatch, f"f64[{count}]", talweg.reduce_scatter, np.ones(count + odd))
        good()
        op = talweg.Op.MAX if odd else talweg.Op.SUM
        expect(mismatch, "max", talweg.reduce_scatter, np.ones(count), None, op)
        good()
        expect(mismatch, f"root {last}", talweg.reduce, np.ones(count), rank if odd else 0)
        good()
        call = talweg.all_gather if odd else talweg.reduce_scatter
        expect(mismatch, "reduce_scatter average", call, np.ones(count))
        good()
        root = last if odd else 0
        expect(mismatch, "scatter", talweg.scatter, np.ones((n, count)), root)
        good()
    handles = [talweg.all_gather_async(np.ones((1, 3 + (odd and i == 1)))) for i in range(3)]
    assert talweg.synchronize(handles[0]).shape == (n, 3)
    expect(mismatch, "rows of [4]", talweg.synchronize, handles[1])
    assert talweg.synchronize(handles[2]).shape == (n, 3)


def a_result_without_a_place() -> None:
    """One rank cannot have its result. The others get theirs, and the next call works."""
    rank, n = talweg.rank(), talweg.size()
    odd = rank == n - 1
    for count in (3, 7000, 20_000):
        array: np.ndarray = np.full((count * n, 2), rank, np.float32)
        for call, has_result in (
            (talweg.all_gather, True),
            (partial(talweg.reduce_scatter, op=talweg.Op.SUM), True),
            (talweg.all_to_all, True),
            (partial(talweg.gather, root_rank=n - 1), odd),
            (partial(talweg.scatter, root_rank=0), True),
        ):
            if odd and has_result:
                with mock.patch.object(NumpyArrays, "empty", side_effect=MemoryError("no room")):
                    expect(MemoryError, "no room", call, array)
            else:
                call(array)
        assert talweg.all_gather(np.array([rank])).tolist() == list(range(n))
    with _small_tensors():
        array = np.full(10_000 * (rank + 1), rank, np.int32)
        if odd:
            with mock.patch.object(NumpyArrays, "empty", side_effect=MemoryError("no room")):
                expect(MemoryError, "no room", talweg.all_gather, array, "no place")
        else:
            talweg.all_gather(array, "no place")
        every = talweg.all_gather(array, "no place")
        assert (every == np.repeat(np.arange(n), 10_000 * (np.arange(n) + 1))).all()


def a_time_limit() -> None:
    """A time limit ends the wait, and the call goes on."""
    rank, n = talweg.rank(), talweg.size()
    if n == 1:
        return
    if rank == 0:
        handle = talweg.all_gather_async(np.array([0]), "late")
        expect(talweg.Timeout, "late", talweg.synchronize, handle, 0.0)
        if talweg.local_size() == n:
            words = "it still waits for rank 1 (local rank 1 of node 0, pid "
            expect(talweg.Timeout, words, talweg.synchronize, handle, 0.01)
            pushed = talweg.push_pull_async(np.zeros(3, np.float32), "late_sum")
            expect(talweg.Timeout, words, talweg.synchronize, pushed, 0.01)
        talweg.barrier()
        if talweg.local_size() == n:
            talweg.synchronize(pushed)
        assert talweg.synchronize(handle).tolist() == list(range(n))
    else:
        talweg.barrier()
        if talweg.local_size() == n:
            talweg.push_pull(np.zeros(3, np.float32), "late_sum")
        assert talweg.all_gather(np.array([rank]), "late").tolist() == list(range(n))


CASES = [
    copies_of_every_dtype,
    complex_numbers,
    reductions_of_every_dtype,
    several_pieces,
    factors,
    between_two_ranks,
    who_may_not_call,
    arguments_of_the_wrong_kind,
    generators_of_tensors,
    opposite_orders_of_different_sets,
    many_open_handles,
    mismatches_then_a_good_round,
    a_result_without_a_place,
    a_time_limit,
]


def main() -> int:
    before = talweg.ProcessSet([0])  # A program may make a set before init().
    talweg.init()
    assert talweg.size() == sum(_NODES) and before.included() == (talweg.rank() == 0)
    run_cases(*CASES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
