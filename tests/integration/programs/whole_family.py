# SPDX-License-Identifier: Apache-2.0
"""One rank of collectives_test.py: every form of a call that there is, of NumPy and of torch.

Each test gets a module, and what makes its tensors. A form is a call, a grouped call, one in place
or into an output; a set, a priority and a time limit may be given to each.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import talweg
import talweg.torch as tw
import torch
from expected_errors import expect
from talweg import _client
from talweg._collectives import kinds

_Make = Callable[[Any], Any]
_SUM = talweg.Op.SUM
# What travels with the control round, and what does not.
_COUNTS = (3, 50_000)


def _same(result: Any, wanted: Any) -> bool:
    return np.array_equal(np.asarray(result), np.asarray(wanted))


def test_names_are_there(module: Any, make: _Make) -> None:
    """Each call has a grouped form, and each of these a form that does not block."""
    calls = ["push_pull", "broadcast", "all_gather", "all_gather_into", "all_gather_survivors"]
    for call in [*calls, "reduce_scatter", "all_to_all", "gather", "scatter", "reduce"]:
        for name in (call, f"{call}_async", f"grouped_{call}", f"grouped_{call}_async"):
            assert name in module.__all__ and callable(getattr(module, name)), name
    for name in ("grouped_push_pull_inplace", "grouped_push_pull_async_inplace"):
        assert name in module.__all__


def test_groups(module: Any, make: _Make) -> None:
    rank, size, root = module.rank(), module.size(), module.size() - 1
    for count in _COUNTS:
        for name in (None, f"group {count} {module.__name__}"):
            mine = [np.full((rank + 1, count), i + rank, np.float32) for i in range(3)]
            every = [
                np.concatenate([np.full((r + 1, count), i + r, np.float32) for r in range(size)])
                for i in range(3)
            ]
            gathered = module.grouped_gather([make(each) for each in mine], root, name)
            for result, wanted in zip(gathered, every):
                assert result is None if rank != root else _same(result, wanted)
            handle = module.grouped_all_gather_survivors_async([make(each) for each in mine], name)
            for (result, ranks), wanted in zip(module.synchronize(handle), every):
                assert _same(result, wanted) and type(result) is type(make(wanted))
                assert ranks == tuple(range(size)), ranks
            given = [make(each) if rank == root else None for each in every]
            for result, wanted in zip(module.grouped_scatter(given, root, name=name), every):
                assert _same(result, np.array_split(wanted, size)[rank])
            alike: list[np.ndarray] = [np.full((2, count), i + 1, np.float32) for i in range(3)]
            totals = module.grouped_reduce([make(each) for each in alike], root, name, _SUM)
            for result, wanted in zip(totals, alike):
                assert result is None if rank != root else _same(result, wanted * size)
            outputs = [make(np.zeros((2 * size, count), np.float32)) for _ in range(3)]
            handle = module.grouped_all_gather_into_async(
                outputs, [make(each) for each in alike], name, priority=2
            )
            for result, output, wanted in zip(module.synchronize(handle), outputs, alike):
                assert result is output and _same(output, np.concatenate([wanted] * size))


def test_groups_of_other_lengths(module: Any, make: _Make) -> None:
    """They end for all ranks at once, and the next calls belong together again."""
    rank, size = module.rank(), module.size()
    for count in _COUNTS:
        for name in (None, f"lengths {count} {module.__name__}"):
            rows = make(np.full((1, count), rank, np.float32))
            group = [rows] * (2 if rank == 0 else 1)
            for call in (module.grouped_all_gather, module.grouped_reduce_scatter):
                expect(talweg.Mismatch, "with 1 to follow in one call", call, group, name)
            rounds: Any = (partial(module.grouped_push_pull, op=_SUM), module.grouped_broadcast)
            for call in rounds if name is None else ():  # Names go by the tensor.
                expect(talweg.Mismatch, "with 1 to follow in one call", call, group)
                assert _same(module.push_pull(rows, op=_SUM), rows * 0 + size * (size - 1) // 2)
            every: Any = np.repeat(np.arange(size, dtype=np.float32), count)
            assert _same(module.all_gather(rows, name), every.reshape(size, count))


def test_groups_of_rounds(module: Any, make: _Make) -> None:
    rank, size, root = module.rank(), module.size(), module.size() - 1
    for name in (None, f"rounds {module.__name__}"):
        arrays = [make(np.full((i, 2), rank + i, np.float32)) for i in range(3)]
        summed = module.grouped_push_pull_inplace(arrays, name, _SUM, timeout_s=60)
        total = size * (size - 1) // 2
        for i, (array, result) in enumerate(zip(arrays, summed)):
            assert result is array and _same(array, np.full((i, 2), total + i * size))
        name = name and f"{name} sent"
        arrays = [make(np.full((i, 2), rank + i, np.float32)) for i in range(3)]
        copies = module.grouped_broadcast(arrays, root, name, priority=1, timeout_s=60)
        for i, (array, copy) in enumerate(zip(arrays, copies)):
            assert _same(copy, np.full((i, 2), root + i))
            assert module is tw or copy is array
    assert module.grouped_broadcast([]) == [] and module.grouped_gather([]) == []


def test_outputs(module: Any, make: _Make) -> None:
    rank, size = module.rank(), module.size()
    for kind in (np.float32, np.complex64):
        for count in _COUNTS:
            rows = np.full((size + 1, count), rank + 1, kind)
            share = np.array_split(rows, size)[rank]
            out = make(np.zeros_like(share))
            total = size * (size + 1) // 2
            assert module.reduce_scatter(make(rows), op=_SUM, out=out) is out
            assert _same(out, np.full_like(share, total))
            handle = module.reduce_scatter_async(make(rows), op=_SUM, prescale_factor=2, out=out)
            assert module.synchronize(handle) is out
            assert _same(out, np.full_like(share, 2 * total))
            even = np.full((2 * size, count), rank, kind)
            wanted = np.concatenate([np.full((2, count), r, kind) for r in range(size)])
            out = make(np.zeros_like(wanted))
            result, counts = module.all_to_all(make(even), out=out)
            assert result is out and counts == [2] * size and _same(out, wanted)
            result, _ = module.synchronize(module.all_to_all_async(make(even), out=out))
            assert result is out
    rows, wrong = make(np.ones((size, 3))), talweg.InvalidArgument
    for out in (np.ones((2, 3)), np.ones((1, 3), np.float32)):
        expect(wrong, "reduce_scatter: the output is f", module.reduce_scatter, rows, out=make(out))
    expect(wrong, "got", module.reduce_scatter, rows, out=7) if module is tw else None
    out = make(np.ones((size + 1, 3)))
    expect(wrong, "all_to_all: the output is f64", module.all_to_all, rows, out=out)
    assert module.all_to_all(rows)[1] == [1] * size  # The channel goes on.


# The functions of libtalweg that push a round, and which argument is the priority.
_PUSHES = {"talweg_push_pull": 3, "talweg_push_parts": 5, "talweg_push_places": 6}


@contextlib.contextmanager
def _pushed_priorities() -> Iterator[list[int]]:
    """Notes the priority of each round that libtalweg is told to push."""
    library, found = _client.current().connection._library, []
    with contextlib.ExitStack() as patches:
        for name, at in _PUSHES.items():
            own = getattr(library, name)

            def push(*given: Any, at: int = at, own: Any = own) -> Any:
                found.append(given[at])
                return own(*given)

            patches.enter_context(mock.patch.object(library, name, push))
        yield found


def test_priorities(module: Any, make: _Make) -> None:
    """Every round of a call leaves with the call's priority, however many rounds it takes."""
    rank, size, root = module.rank(), module.size(), module.size() - 1
    few = 4096 * size
    small_tensors = mock.patch.multiple(
        kinds, _TENSOR_BYTES_MAX=few, _REDUCED_BYTES_MAX=few, _COPIED_BYTES_MAX=few
    )
    for count, pieces in ((3, None), (50_000, None), (3_000, small_tensors)):
        rows = np.ones((size, count), np.float32)
        out = np.zeros((size * size, count), np.float32)
        calls: dict[str, _Make] = {
            "push_pull": lambda own: (own,),
            "push_pull_inplace": lambda own: (own,),
            "broadcast": lambda own: (own, root),
            "all_gather": lambda own: (own,),
            "all_gather_into": partial(lambda out, own: (make(out), own), out),
            "all_gather_survivors": lambda own: (own,),
            "reduce_scatter": lambda own: (own,),
            "reduce": lambda own: (own, root),
            "all_to_all": lambda own: (own,),
            "gather": lambda own: (own, root),
            "scatter": lambda own: (own, root),
        }
        with pieces or contextlib.nullcontext():
            for number, (call, arguments) in enumerate(calls.items()):
                for name in (None, f"priority {call} {count} {module.__name__}"):
                    priority = 100 * (number + 1) + (name is not None)
                    module.barrier()
                    with _pushed_priorities() as found:
                        own = arguments(make(rows))
                        getattr(module, call)(*own, name=name, priority=priority)
                    assert set(found) == {priority}, (call, count, name, priority, found)
            module.barrier()
            if rank in (0, root):
                with _pushed_priorities() as found:
                    if rank == 0:
                        module.send(make(rows), root, priority=-7)
                    else:
                        module.recv(None, 0, priority=-7)
                assert set(found) == {-7}, (count, found)


def test_options(module: Any, make: _Make) -> None:
    """A set has a declaration of its own; each call takes a priority and a time limit."""
    rank, size = module.rank(), module.size()
    pair, one = talweg.ProcessSet([0, size - 1]), make(np.ones(4, np.float32))
    name = f"declared {module.__name__}"
    if pair.included():
        if module is tw:
            tw.declare(name, one, _SUM, process_set=pair)
        else:
            talweg.declare(name, np.float32, 4, _SUM, process_set=pair)
        total = module.push_pull(one, name, _SUM, process_set=pair, priority=3)
        assert _same(total, np.full(4, pair.size()))
        module.barrier(pair, timeout_s=60)
        mine = make(np.full(3, rank + 1.0))
        if rank == 0:
            module.send(mine, size - 1, process_set=pair)
        else:
            assert _same(module.recv(None, 0, process_set=pair), np.ones(3))
    assert _same(module.push_pull(one, name, _SUM), np.full(4, size))
    assert _same(module.broadcast(one, 0, priority=-1, timeout_s=60), np.ones(4))
    outside = talweg.ProcessSet([rank])
    peer = (rank + 1) % size
    expect(talweg.InvalidArgument, "not in ProcessSet", module.send, one, peer, None, outside)
    expect(talweg.InvalidArgument, "not in", module.push_pull, one, process_set=_other(rank, size))
    if rank == 0:
        expect(talweg.Timeout, "0.01 s", module.barrier, timeout_s=0.01)
    module.all_gather(one)  # The others have not called it before.
    module.barrier()
    late = f"late {module.__name__}"
    module.broadcast(one, 0, late)
    if rank == 0:
        expect(talweg.Timeout, late, module.broadcast, one, 0, late, timeout_s=0.01)
        module.barrier()
    else:
        module.barrier()
        module.broadcast(one, 0, late)
    module.broadcast(one, 0, late)
    gather = module.grouped_gather_async
    expect(talweg.InvalidArgument, "synchronize()", gather, [one], timeout_s=1)


def _other(rank: int, size: int) -> talweg.ProcessSet:
    return talweg.ProcessSet([(rank + 1) % size])


def test_operations_that_a_dtype_lacks(module: Any, make: _Make) -> None:
    """All reductions raise one kind of error, and nothing is pushed."""
    flags = make(np.ones(4, np.bool_))
    for call in (module.push_pull, module.reduce_scatter, module.reduce):
        expect(talweg.Unsupported, "sum is not defined for bool", call, flags, op=_SUM)
        number = make(np.ones(4, np.complex64))
        expect(talweg.Unsupported, "complex64", call, number, op=talweg.Op.MIN)
    assert _same(module.push_pull(flags, op=talweg.Op.MIN), np.ones(4, np.bool_))


def main() -> int:
    talweg.init()
    tests = [test for name, test in globals().items() if name.startswith("test_")]
    for module, make in ((talweg, np.array), (tw, torch.tensor)):
        for test in tests:
            test(module, make)
            talweg.barrier()
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
