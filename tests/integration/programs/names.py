# SPDX-License-Identifier: Apache-2.0
"""One rank of names_test.py. Names change their tensors, and ranks do not agree on them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import talweg
import talweg.torch
import torch
from talweg import _client


def _told(call: Callable[[], object]) -> str:
    try:
        call()
    except talweg.Mismatch as mismatch:
        return str(mismatch)
    return ""


def _refused(call: Callable[[], object], *words: str) -> None:
    try:
        call()
    except talweg.InvalidArgument as refusal:
        _check(str(refusal), *words)
    else:
        raise AssertionError(f"nothing is wrong with {words}")


def _check(told: str, *words: str) -> None:
    assert all(word in told for word in words), (told, words)


def _sum(count: int, name: str | None, dtype: type = np.float32) -> bool:
    ones: np.ndarray = np.ones(count, dtype)
    return bool((talweg.push_pull(ones, name, talweg.Op.SUM) == talweg.size()).all())


def test_a_name_that_changes() -> None:
    for count in (4, 4, 5, 4, 3_000_000, 7, 12_000_000, 0, 4):
        assert _sum(count, "changes")
    assert _sum(4, "changes", np.float64)
    array: np.ndarray = np.full(3, talweg.rank(), np.float32)
    last = talweg.size() - 1
    assert (talweg.broadcast(array, last, "changes") == last).all()
    assert (talweg.push_pull(array, "changes", talweg.Op.MAX) == last).all()


def test_one_rank_that_changes() -> None:
    """The other ranks get an error at their next call, and the call after that works."""
    rank = talweg.rank()
    for _ in range(3):
        assert _sum(4, "one")
    told = _told(lambda: _sum(4 + (rank == 1), "one"))
    # The error names rank 1, and the first of the other ranks.
    _check(told, "'one'", "f32[4]", "f32[5]", "rank 1", "shape [4]")
    assert _sum(6, "one")
    assert _sum(4, "one")


def test_a_broadcast_that_changes() -> None:
    rank = talweg.rank()
    for root in (0, 1):
        name = f"root {root}"
        for _ in range(2):
            talweg.broadcast(np.ones(4, np.float32), root, name)
        for changes in (0, 1):
            array: np.ndarray = np.ones(4 + (rank == changes), np.float32)
            told = _told(partial(talweg.broadcast, array, root, name))
            _check(told, "f32[4]", "f32[5]", "broadcast")
        assert (talweg.broadcast(np.full(9, rank), root, name) == root).all()


def test_a_first_use_that_differs() -> None:
    rank = talweg.rank()
    _check(_told(lambda: _sum(4 + (rank == 1), "first")), "f32[4]", "f32[5]")
    assert _sum(4, "first")
    dtype = np.float32 if rank else np.float64
    _check(_told(lambda: _sum(4, "dtypes", dtype)), "f32[4]", "f64[4]")
    assert _sum(4, "dtypes")


def test_a_declaration_that_differs() -> None:
    """Whoever has got the error early, the first calls of all ranks raise it, and no later ones."""
    rank = talweg.rank()
    _told(lambda: talweg.declare("early", np.float32, 4 + (rank == 1), talweg.Op.SUM))
    _check(_told(lambda: _sum(6, "early")), "f32[4]", "f32[5]")
    for _ in range(3):
        assert _sum(6, "early")
    ones = torch.ones(4 + (rank == 1))
    _told(lambda: talweg.torch.declare("early torch", ones, talweg.Op.SUM))
    _check(_told(lambda: _sum(6, "early torch")), "f32[4]", "f32[5]")
    for _ in range(3):
        assert _sum(6, "early torch")
    if rank == 0:  # The other ranks learn it from their first calls.
        _told(lambda: talweg.declare("one early", np.float32, 4, talweg.Op.SUM))
    _check(_told(lambda: _sum(5, "one early")), "f32[4]", "f32[5]")
    for _ in range(3):
        assert _sum(5, "one early")


def test_a_late_rank_that_differs() -> None:
    """The other ranks have agreed on the tensor and pushed it when the last rank comes."""
    rank, last = talweg.rank(), talweg.size() - 1
    handle = None
    if rank != last:
        handle = talweg.push_pull_async(np.ones(4, np.float32), "late", talweg.Op.SUM)
    talweg.barrier()
    if handle is None:
        _check(_told(lambda: _sum(5, "late")), "f32[4]", "f32[5]")
    else:
        _check(_told(lambda: talweg.synchronize(handle)), "f32[4]", "f32[5]")
    assert _sum(5, "late")


def test_calls_without_a_name() -> None:
    for count in range(1, 40):
        assert _sum(count, None)
    handles = [
        talweg.push_pull_async(np.full(count, count, np.float32), op=talweg.Op.SUM)
        for count in range(1, 30)
    ]
    for count, handle in reversed(list(enumerate(handles, 1))):
        assert (talweg.synchronize(handle) == count * talweg.size()).all()


def test_calls_without_a_name_that_differ() -> None:
    rank = talweg.rank()
    for _ in range(40):
        assert _sum(4, None)
    _check(_told(lambda: _sum(4 + (rank == 1), None)), "without a name", "f32[4]", "f32[5]")
    assert _sum(4, None)
    one: np.ndarray = np.ones(4, np.float32)
    kinds = _told(lambda: _sum(4, None) if rank else talweg.broadcast(one, 0))
    _check(kinds, "rank 0 calls broadcast of f32[4]", "rank 1 calls push_pull sum of f32[4]")
    assert _sum(5, None)


def test_many_at_once() -> None:
    """Names change in a different order at each rank, and the arrays change at the same time."""
    names = [f"many {index}" for index in range(12)]
    for name in names:
        assert _sum(3, name)
    order = names if talweg.rank() % 2 else names[::-1]
    handles = {}
    for name in order:
        array: np.ndarray = np.full(5 + names.index(name), 1, np.float32)
        handles[name] = talweg.push_pull_async(array, name, talweg.Op.SUM)
        array[:] = -1
    for name in reversed(order):
        assert (talweg.synchronize(handles[name]) == talweg.size()).all()


def test_names_of_objects() -> None:
    """Each kind of call, and each root, may use the same name."""
    rank, size = talweg.rank(), talweg.size()
    for root in (0, size - 1, 0):
        assert talweg.broadcast_object(rank, root, "object") == root
        assert talweg.all_gather_object(rank, "object") == list(range(size))
        assert _sum(3, "object")
    pair = talweg.ProcessSet([0, size - 1])
    if pair.included():
        told = talweg.all_gather_object(rank, "object", process_set=pair)
        assert told == list(pair.ranks)


def test_long_names() -> None:
    """Each call takes names as long as a settled call does, also if they differ only at the end."""
    rank, size = talweg.rank(), talweg.size()
    for start in ("n" * 1023, "\u00e9" * 511 + "o"):
        for name in (start + "a", start + "b"):
            for count in (3, 5000, 6000):  # The name is settled at first, then free.
                assert _sum(count, name)
                own: np.ndarray = np.full(count, rank, np.int32)
                assert talweg.all_gather(own, name).shape == (size * count,)
                part = talweg.reduce_scatter(own, name, talweg.Op.MAX)
                assert (part == size - 1).all()
            assert talweg.broadcast_object(rank, 0, name) == 0
            assert talweg.all_gather_object(rank, name) == list(range(size))
        handles = [
            talweg.all_gather_async(np.full(2000, i), start + end)
            for i, end in enumerate("ab" if rank % 2 else "ba")
        ]
        for handle in reversed(handles):
            talweg.synchronize(handle)
    for name in ("", "n" * 1025):
        for call in (talweg.push_pull, talweg.all_gather, talweg.reduce_scatter):
            words = f"has {len(name)} bytes", "1 to 1024"
            _refused(partial(call, np.ones(3, np.float32), name), *words)
        _refused(partial(talweg.all_gather_object, 1, name), "1 to 1024")


def test_a_mismatch_while_a_rank_waits_elsewhere() -> None:
    """A rank with an open call takes part in the call's end while it waits for another one."""
    rank = talweg.rank()
    for count in (4, 100_000):
        # These calls use other tensors, which the other ranks have not begun.
        array: np.ndarray = np.ones(count, np.float64 if rank == 1 else np.float32)
        free = f"elsewhere {count}"
        for length in (3, 4):
            assert _sum(length, free)
        calls = [
            partial(talweg.push_pull_async, array),
            partial(talweg.push_pull_async, array, free),
            partial(talweg.reduce_scatter_async, array),
            partial(talweg.reduce_scatter_async, array, free),
        ]
        for waits in range(2):
            for index, call in enumerate(calls):
                handle = call()
                other = f"other {count} {index} {waits}"
                if rank == waits:
                    assert _sum(3, other)
                _check(_told(partial(talweg.synchronize, handle)), f"f32[{count}]", f"f64[{count}]")
                if rank != waits:
                    assert _sum(3, other)


def test_a_mismatch_of_a_settled_name_while_a_rank_waits_elsewhere() -> None:
    """The call ends for the others even if a rank does not look at it."""
    rank = talweg.rank()
    four: np.ndarray = np.ones(4, np.float32)
    wide: np.ndarray = np.ones((2, 3), np.float32)
    tensor, frame = torch.ones(4), talweg.torch
    # How ranks use a name, how one rank uses it otherwise, and words of the error.
    cases: list[tuple[Callable[[str], Any], Callable[[str], object], tuple[str, ...]]] = [
        (
            lambda name: talweg.push_pull_async(four, name),
            lambda name: talweg.push_pull(four.astype(np.float64), name),
            ("f32[4]", "f64[4]"),
        ),
        (
            lambda name: talweg.push_pull_async(wide, name),
            lambda name: talweg.push_pull(wide.reshape(3, 2), name),
            ("[2, 3]", "[3, 2]"),
        ),
        (
            lambda name: frame.push_pull_async(tensor, name),
            lambda name: frame.push_pull(torch.ones(5), name),
            ("f32[4]", "f32[5]"),
        ),
        (
            lambda name: frame.push_pull_async_inplace(torch.ones(4), name),
            lambda name: frame.push_pull(tensor, name, talweg.Op.MAX),
            ("average", "max"),
        ),
    ]
    for index, (as_before, otherwise, words) in enumerate(cases):
        for waits in range(2):
            name = f"asleep {index} {waits}"
            for _ in range(2):
                frame.synchronize(as_before(name))
            if rank == waits:
                handle = as_before(name)
                assert _sum(3, f"{name} other")
                _check(_told(partial(frame.synchronize, handle)), name, *words)
            else:

                def both(name: str, start: Callable[[str], Any] = as_before) -> None:
                    frame.synchronize(start(name))

                call = otherwise if rank == 1 - waits else both
                _check(_told(partial(call, name)), name, *words)
                assert _sum(3, f"{name} other")
            for count in (6, 4):
                assert _sum(count, name)


def test_a_settled_name_that_each_rank_uses_otherwise() -> None:
    rank = talweg.rank()
    for name in ("apart", "apart again"):
        assert _sum(3, name)
        _check(_told(partial(_sum, 4 + rank, name)), name, f"f32[{4 + rank}]", "before")
        _check(_told(partial(_sum, 4 + rank, name)), name, "f32[4]", "f32[5]")
        assert _sum(4, name)


def test_a_dropped_handle_of_a_settled_name_that_others_use_otherwise() -> None:
    """For the next call of the rank that has dropped the handle, the name is free."""
    rank, frame = talweg.rank(), talweg.torch
    starts: list[Callable[[str], Any]] = [
        lambda name: talweg.push_pull_async(np.ones(4, np.float32), name, talweg.Op.SUM),
        lambda name: talweg.push_pull_async(np.ones(5, np.float32), name, talweg.Op.SUM),
        lambda name: frame.push_pull_async_inplace(torch.ones(4), name, talweg.Op.SUM),
    ]
    for index, start in enumerate(starts):
        name = f"dropped {index}"
        assert _sum(4, name)
        if rank == 0:
            starts[0](name)
        else:
            _check(_told(partial(_sum, 5, name)), name, "f32[4]", "f32[5]")
        talweg.barrier()
        frame.synchronize(start(name))
        assert _sum(5, name)


def test_calls_are_named_as_the_program_makes_them() -> None:
    """Errors name the calls of both sides as the program makes them."""
    rank = talweg.rank()
    one: np.ndarray = np.ones(4, np.float32)
    two: np.ndarray = np.ones(5, np.float32)
    tensor = torch.ones(6)
    calls: dict[str, Callable[[], object]] = {
        "push_pull sum of f32[4]": lambda: talweg.push_pull(one, "called", talweg.Op.SUM),
        "push_pull_inplace sum of f32[5]": lambda: talweg.push_pull_inplace(
            two, "called", talweg.Op.SUM
        ),
        "push_pull_async sum of f32[6]": lambda: talweg.torch.synchronize(
            talweg.torch.push_pull_async(tensor, "called", talweg.Op.SUM)
        ),
        "broadcast of f32[4]": lambda: talweg.broadcast(one, 0, "called"),
        "broadcast_ of f32[6]": lambda: talweg.torch.broadcast_(tensor, 0, "called"),
    }
    for count in (3, 4):
        assert _sum(count, "called")  # The name is free.
    names = list(calls)
    for own, other in zip(names, [*names[1:], names[0]]):
        told = _told(calls[other if rank == 1 else own])
        _check(told, f"rank 0 calls {own}", f"rank 1 calls {other}")


def test_groups() -> None:
    rank = talweg.rank()
    for count in (3, 3, 4):
        arrays: list[np.ndarray] = [np.ones(count, np.float32), np.ones(2 * count, np.float32)]
        for result in talweg.grouped_push_pull(arrays, "group", talweg.Op.SUM):
            assert (result == talweg.size()).all()
    # Settled names take one round each.
    talweg.grouped_push_pull([np.ones((2, 3), np.float32)] * 2, "settled group", talweg.Op.SUM)
    assert not any(_client.current().tensors.is_free(f"settled group.{i}") for i in range(2))
    first: list[np.ndarray] = [np.ones(3, np.float32), np.ones(4 + (rank == 1), np.float32)]
    _check(
        _told(partial(talweg.grouped_push_pull, first, "first group", talweg.Op.SUM)),
        "f32[4]",
        "f32[5]",
    )
    assert _sum(3, "first group.0")
    assert _sum(5, "first group.1")
    for _ in range(3):  # Ranks that differ in length end the group, not the calls after it.
        unequal = partial(talweg.grouped_push_pull, [first[0]] * (2 - (rank == 1)))
        _check(_told(unequal), "rank 0 calls grouped_push_pull", "with 1 to follow in one call")
        assert _sum(3, None)


def test_groups_in_torch() -> None:
    rank = talweg.rank()
    tensors = [torch.ones(3), torch.ones(4 + (rank == 1)), torch.ones(5)]
    group = partial(talweg.torch.grouped_push_pull, tensors, "torch group", talweg.Op.SUM)
    _check(_told(group), "f32[4]", "f32[5]")
    assert _sum(3, "torch group.0")
    assert _sum(5, "torch group.2")


def test_torch() -> None:
    rank, size = talweg.rank(), talweg.size()
    for shape in ((2, 3), (2, 3), (4,), (2, 3)):
        tensor = torch.ones(shape)
        talweg.torch.push_pull_inplace(tensor, name="torch", op=talweg.Op.SUM)
        assert (tensor == size).all()
    tensor = torch.ones(4)
    for _ in range(2):
        talweg.torch.push_pull_inplace(tensor, name="torch in place", op=talweg.Op.MAX)
    told = _told(
        lambda: talweg.torch.push_pull_inplace(
            torch.ones(4 + (rank == 1)), name="torch in place", op=talweg.Op.MAX
        )
    )
    _check(told, "f32[4]", "f32[5]")
    scaled = talweg.torch.push_pull(
        torch.ones(9), name="torch in place", op=talweg.Op.SUM, prescale_factor=2.0
    )
    assert (scaled == 2 * size).all()


def test_names_of_gradients() -> None:
    """No rank frees them, whether they are in place at its node or not."""
    model = torch.nn.Linear(200, 100)
    optimizer = talweg.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    model(torch.ones(200)).sum().backward()
    optimizer.step()
    for name in ("weight", "bias"):
        _refused(partial(_sum, 3, f"optimizer.gradient.{name}"), "a name of its own")


class _TimeUp(Exception):
    """What the handler of a signal raises that keeps a program's own time limit."""


# What the handlers of a test's signals raise.
_INTERRUPTS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: _TimeUp}


def _raise_at(number: signal.Signals, kind: type[BaseException]) -> None:
    def handle(*_: object) -> None:
        raise kind

    signal.signal(number, handle)


_raised: list[BaseException] = []  # As of a program that keeps errors, and so the calls' objects.


def _raises(kind: type[BaseException], call: Callable[[], object], *words: str) -> None:
    try:
        call()
    except kind as failure:
        _check(str(failure), *words)
        _raised.append(failure)
    else:
        raise AssertionError(f"no {kind.__name__}")


def _calls_that_block(name: str, count: int) -> list[tuple[Callable[..., object], bool]]:
    """Returns calls that block, each with its own name, and whether it takes a time limit."""
    last, frame, tensor = talweg.size() - 1, talweg.torch, torch.ones(count)
    array: np.ndarray = np.ones(count, np.float32)
    return [
        (partial(talweg.push_pull, array, f"{name} sum"), True),
        (partial(talweg.push_pull_inplace, array.copy(), f"{name} in place"), True),
        (partial(talweg.grouped_push_pull, [array, array], f"{name} group"), True),
        (partial(talweg.broadcast, array.copy(), last, f"{name} broadcast"), False),
        (partial(frame.push_pull, tensor, f"{name} torch"), True),
        (partial(frame.push_pull_inplace, tensor.clone(), f"{name} torch in place"), True),
        (partial(frame.grouped_push_pull, [tensor], f"{name} torch group"), True),
        (partial(frame.broadcast, tensor, last, f"{name} torch broadcast"), False),
        (partial(frame.broadcast_, tensor.clone(), last, f"{name} torch broadcast_"), False),
    ]


def test_calls_that_end_before_their_rounds() -> None:
    """A call that blocks has no handle, so its round ends by itself."""
    for count in (4, 300_000):
        for call, has_limit in _calls_that_block(f"early {count}", count):
            call()  # This settles the name.
            for kind in (KeyboardInterrupt, _TimeUp, *([talweg.Timeout] if has_limit else [])):
                if talweg.rank() > 0:
                    talweg.barrier()
                    call()
                elif kind is talweg.Timeout:
                    _raises(talweg.Timeout, partial(call, timeout_s=0.01), "goes on by itself")
                    _raises(talweg.Timeout, partial(call, timeout_s=0.01), "has pushed nothing")
                    talweg.barrier()
                else:
                    _raise_at(signal.SIGALRM, kind)
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
                    _raises(kind, call)
                    talweg.barrier()
                call()
                call()


def test_calls_that_are_interrupted_while_they_push() -> None:
    """A signal comes while the library pushes. The call is then made, and its round ends by
    itself.
    """
    connection = _client.current().connection

    def interrupted(push: Callable[..., int], number: signal.Signals) -> Callable[..., int]:
        def call(*arguments: Any, **options: Any) -> int:
            round_ = push(*arguments, **options)
            signal.raise_signal(number)
            return round_

        return call

    for count in (4, 300_000):
        for call, _ in _calls_that_block(f"interrupted {count}", count):
            if "group" in repr(call):  # The interrupt parts the calls of a group.
                continue
            for number, kind in _INTERRUPTS.items():
                _raise_at(number, kind)
                call()
                if talweg.rank() > 0:
                    call()
                else:
                    with contextlib.ExitStack() as stack:
                        for name in ("push_pull", "push_parts"):
                            patched = interrupted(getattr(connection, name), number)
                            stack.enter_context(mock.patch.object(connection, name, patched))
                        _raises(kind, call)
                call()
                call()


def test_a_round_that_was_left_and_differs() -> None:
    """The other ranks get an error without another call of the rank that has left the round."""
    for op in (talweg.Op.SUM, talweg.Op.MAX):  # The name's earlier use, and another.
        name = f"left {op.name}"
        assert _sum(4, name)
        if talweg.rank() == 0:
            array: np.ndarray = np.ones(4, np.float32)
            _raises(talweg.Timeout, partial(talweg.push_pull, array, name, op, timeout_s=0.01))
        talweg.barrier()
        if talweg.rank() > 0:
            _check(_told(partial(_sum, 5, name)), name, "4]", "5]")
        talweg.barrier()
        assert _sum(5, name)
    for count in (4, 30_000):
        part: np.ndarray = np.ones(count, np.float32)
        if talweg.rank() == 0:
            call = partial(talweg.reduce_scatter, part, "left part", timeout_s=0.01)
            _raises(talweg.Timeout, call, "'left part'", "goes on by itself")
        talweg.barrier()
        if talweg.rank() > 0:
            told = _told(partial(talweg.reduce_scatter, part, "left part", talweg.Op.SUM))
            _check(told, "sum", "average")
        talweg.barrier()
        talweg.reduce_scatter(part, "left part")


def test_dropped_handles() -> None:
    """The next call of a name takes an earlier round whose handle nobody has."""
    for count in (4, 300_000):
        array: np.ndarray = np.ones(count, np.float32)
        tensor = torch.ones(count)
        for start, rest in (
            (talweg.push_pull_async, array),
            (talweg.torch.push_pull_async_inplace, tensor),
        ):
            name = f"dropped {count} {start.__module__}"
            push = partial(start, rest, name, talweg.Op.MAX)
            talweg.synchronize(push())
            if talweg.rank() > 0:
                talweg.barrier()
            push()
            if talweg.rank() == 0:
                _raises(talweg.Busy, push, name, "handle of its last round was dropped")
                talweg.barrier()
                talweg.synchronize(_not_busy(push))
            else:
                talweg.synchronize(_not_busy(push))
            assert (talweg.push_pull(array, name, talweg.Op.MAX) == 1).all()


def _not_busy(push: Callable[[], talweg.Handle]) -> talweg.Handle:
    while True:
        try:
            return push()
        except talweg.Busy:
            os.sched_yield()


def test_what_no_tensor_can_be() -> None:
    """Impossible tensors are refused before others learn of them. The name keeps its meaning."""
    assert _sum(4, "refused")
    for _ in range(2):
        _refused(lambda: _sum(4, "refused", np.bool_), "bool")
        _refused(lambda: talweg.push_pull(np.ones(4, np.int32), "refused"), "average")
        tensor = torch.ones(4)
        _refused(partial(talweg.torch.broadcast, tensor, 99, name="refused"), "root_rank is 99")
        assert _sum(4, "refused")
    _refused(lambda: talweg.push_pull(np.ones(4, np.int32)), "average")
    assert _sum(4, None)


def test_sets() -> None:
    if talweg.size() < 3:
        return
    pair = talweg.ProcessSet([0, 1])
    assert _sum(3, "set")
    if pair.included():
        for count, end in itertools.product((3, 4, 3), "ab"):
            for name in ("set", "n" * 1023 + end):
                ones = talweg.push_pull(np.ones(count), name, talweg.Op.SUM, process_set=pair)
                assert (ones == 2).all()
        talweg.declare("d" * 1024, np.float32, 4, process_set=pair)
        assert (talweg.broadcast(np.ones(4, np.float32), 0, "b" * 1024, pair) == 1).all()
    assert _sum(3, "set")


def main() -> int:
    talweg.init()
    alone = (test_a_name_that_changes, test_many_at_once)
    for name, test in list(globals().items()):
        if name.startswith("test_") and (talweg.size() > 1 or test in alone):
            test()
            talweg.barrier()
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
