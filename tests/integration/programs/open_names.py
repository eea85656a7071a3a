# SPDX-License-Identifier: Apache-2.0
"""One rank of collectives_test.py: calls of a name whose round is open. Each test is a case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import talweg
import talweg.torch as tw
import torch
from expected_errors import expect

_SUM = talweg.Op.SUM
# A few elements, and more than travel with one message.
_COUNTS = (3, 300_000)


def test_calls_of_one_name_run_one_after_another() -> None:
    """Each call has its own data, whatever becomes of the array, in any order of synchronize()."""
    size = talweg.size()
    for count in _COUNTS:
        array: np.ndarray = np.empty(count, np.float32)
        handles = []
        for number in range(12):
            array[:] = number
            handles.append(talweg.push_pull_async(array, f"own {count}", _SUM))
        array[:] = -1
        for number, handle in reversed(list(enumerate(handles))):
            assert (talweg.synchronize(handle) == number * size).all(), number


def test_calls_in_place() -> None:
    size, root = talweg.size(), talweg.size() - 1
    for count in _COUNTS:
        tensors = [torch.full((count,), float(number)) for number in range(8)]
        handles = [tw.push_pull_async_inplace(each, f"in {count}", _SUM) for each in tensors]
        for number, handle in enumerate(handles):
            assert tw.synchronize(handle) is tensors[number]
            assert (tensors[number] == number * size).all()
        arrays = [np.full(count, talweg.rank() + number) for number in range(8)]
        sent = [talweg.broadcast_async(each, root, f"root {count}") for each in arrays]
        copies = [tw.broadcast_async(each, root, f"copy {count}") for each in tensors]
        for number, handle in enumerate(sent):
            assert (talweg.synchronize(handle) == root + number).all()
        assert all((tw.synchronize(each) == n * size).all() for n, each in enumerate(copies))


def test_a_name_that_changes() -> None:
    for kind in (np.float32, np.int64):
        handles = [
            talweg.push_pull_async(np.full(1 + number // 2, number, kind), "changes", _SUM)
            for number in range(9)
        ]
        for number, handle in enumerate(handles):
            result = talweg.synchronize(handle)
            assert result.dtype == kind and result.tolist() == [number * talweg.size()] * (
                1 + number // 2
            )


def test_a_mismatch_is_that_of_its_call() -> None:
    """The calls before and after it have their results."""
    own = 4 + (talweg.rank() == 0)
    for name in ("first", "again"):
        counts = (4, own, 6)
        handles = [talweg.push_pull_async(np.ones(each), name, _SUM) for each in counts]
        assert (talweg.synchronize(handles[0]) == talweg.size()).all()
        expect(talweg.Mismatch, f"tensor '{name}'", talweg.synchronize, handles[1])
        assert (talweg.synchronize(handles[2]) == talweg.size()).all()


def test_nobody_waits() -> None:
    """A rank that waits for something else carries on its queued calls."""
    calls: list[Callable[[np.ndarray], Any]] = [
        lambda array: talweg.push_pull_async(array, "alone", _SUM),
        lambda array: talweg.push_pull(array, "alone", _SUM),
    ]
    for rank in range(talweg.size()):
        mine = calls[0] if talweg.rank() == rank else calls[1]
        results = [mine(np.full(5, number)) for number in range(4)]
        talweg.barrier()
        if talweg.rank() == rank:
            results = [talweg.synchronize(each) for each in results]
        assert [each[0] for each in results] == [n * talweg.size() for n in range(4)]


def test_a_call_that_blocks_waits_for_its_turn() -> None:
    handle = talweg.push_pull_async(np.ones(5), "blocks", _SUM)
    assert (talweg.push_pull(np.full(5, 2.0), "blocks", _SUM) == 2 * talweg.size()).all()
    assert talweg.poll(handle)
    assert (talweg.synchronize(handle) == talweg.size()).all()


def test_a_time_limit() -> None:
    """Queued calls that time out go on, and so does what follows them."""
    if talweg.rank() == 0:
        first = talweg.push_pull_async(np.ones(5), "timed", _SUM)
        second = talweg.push_pull_async(np.full(5, 2.0), "timed", _SUM)
        expect(talweg.Timeout, "'timed'", talweg.synchronize, second, 0.01)
        expect(
            talweg.Timeout,
            "goes on by itself",
            lambda: talweg.push_pull(np.full(5, 3.0), "timed", _SUM, timeout_s=0.01),
        )
        talweg.barrier()
        assert (talweg.synchronize(second) == 2 * talweg.size()).all()
        assert (talweg.synchronize(first) == talweg.size()).all()
    else:
        talweg.barrier()
        for number in (1.0, 2.0, 3.0):
            talweg.push_pull(np.full(5, number), "timed", _SUM)
    assert (talweg.push_pull(np.ones(5), "timed", _SUM) == talweg.size()).all()


def test_sets() -> None:
    own = talweg.ProcessSet([talweg.rank()])
    handles = [talweg.push_pull_async(np.full(4, n), "set", _SUM) for n in range(3)]
    alone = [
        tw.push_pull_async(torch.full((4,), n), "set", _SUM, process_set=own) for n in range(3)
    ]
    for number in range(3):
        assert (talweg.synchronize(handles[number]) == number * talweg.size()).all()
        assert (tw.synchronize(alone[number]) == number).all()


def main() -> int:
    talweg.init()
    for name, test in list(globals().items()):
        # A rank that is alone finds no other to differ from, or to wait for.
        if name.startswith("test_") and (
            talweg.size() > 1
            or test not in (test_a_mismatch_is_that_of_its_call, test_a_time_limit)
        ):
            test()
            talweg.barrier()
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
