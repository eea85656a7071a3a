# SPDX-License-Identifier: Apache-2.0
"""One rank of numpy_test.py. Each function checks a promise of talweg for NumPy arrays."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import traceback
import warnings
from typing import Any
from unittest import mock

import numpy as np
import talweg
from cases import run_cases
from expected_errors import expect
from talweg import _client
from talweg._collectives import kinds, objects
from talweg._library.native import library


def _sum_of_ranks() -> int:
    return talweg.size() * (talweg.size() + 1) // 2


def _declared() -> int:
    return _client.current().tensor_count


def dtypes_and_shapes() -> None:
    own = talweg.rank() + 1
    integers = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
    for dtype in (np.float32, np.float64, np.float16, *integers):
        array: np.ndarray = np.full((3, 5), own, dtype)
        total = talweg.push_pull(array, op=talweg.Op.SUM, name=f"sum.{np.dtype(dtype)}")
        assert total.dtype == dtype and total.shape == (3, 5) and (total == _sum_of_ranks()).all()
        assert (array == own).all()
    flags = np.array([True, talweg.rank() == 0])
    every = talweg.push_pull(flags, op=talweg.Op.BIT_AND, name="every")
    assert every.dtype == np.bool_ and every.tolist() == [True, talweg.size() == 1], every
    scalar = talweg.push_pull(np.array(float(own)), op=talweg.Op.SUM, name="scalar")
    assert scalar.shape == () and scalar == _sum_of_ranks()
    base: np.ndarray = np.arange(12, dtype=np.float32).reshape(3, 4) + talweg.rank()
    wanted = base + (talweg.size() - 1) / 2 - talweg.rank()
    for name, view in (("transposed", base.T), ("backward", base[:, ::-1]), ("part", base[::2])):
        of_wanted = {"transposed": wanted.T, "backward": wanted[:, ::-1], "part": wanted[::2]}[name]
        assert (talweg.push_pull(view, name=name) == of_wanted).all(), name
    frozen = base.copy()
    frozen.flags.writeable = False
    assert (talweg.push_pull(frozen, name="frozen") == wanted).all()


def rounds_without_names() -> None:
    """Rounds without names take a bounded number of tensors, however many there are."""
    before = _declared()
    for step in range(40):
        array: np.ndarray = np.full(10, step * (talweg.rank() + 1), np.float32)
        assert (talweg.push_pull(array, op=talweg.Op.SUM) == step * _sum_of_ranks()).all()
        if step % 4 == 0:
            large: np.ndarray = np.full(1 << 20, talweg.rank(), np.float64)
            talweg.push_pull_inplace(large, op=talweg.Op.MAX)
            assert (large == talweg.size() - 1).all()
            talweg.broadcast(large, talweg.size() - 1)
        assert talweg.all_gather_object(talweg.rank()) == list(range(talweg.size()))
        assert talweg.broadcast_object((step, talweg.rank())) == (step, 0)
        talweg.barrier()
        if step == 20:
            before = _declared()
    assert _declared() == before, f"{_declared()} tensors, {before} in step 20"


def long_arrays_of_changing_lengths() -> None:
    """Each kind of call makes a few tensors, and then takes several rounds."""
    size, last = talweg.size(), talweg.size() - 1
    shorter: dict[str, Any] = {"_TENSOR_BYTES_MAX": 32 << 10, "_REDUCED_BYTES_MAX": 16 << 10}
    with mock.patch.multiple(kinds, **shorter, _COPIED_BYTES_MAX=8 << 10):
        for name in (None, "changes its length"):
            before = 0
            for step in range(12):
                count = 20_000 + 1001 * step
                own: np.ndarray = np.arange(count, dtype=np.float32) + talweg.rank()
                wanted: np.ndarray = size * np.arange(count) + size * last // 2
                assert (talweg.push_pull(own, name, talweg.Op.SUM) == wanted).all()
                in_place = own.copy()
                talweg.push_pull_inplace(in_place, name, talweg.Op.SUM, prescale_factor=2.0)
                assert (in_place == 2 * wanted).all()
                talweg.broadcast(own, last, name)
                assert (own == np.arange(count) + last).all()
                before = before if step > 3 else _declared()
            # A rank that is alone has no memory for tensors, so each length may have a record.
            is_flat = _declared() == before or _client.current().is_alone
            assert is_flat, f"{_declared()} tensors, {before} in step 3"
            if size > 1:
                other: np.ndarray = np.ones(30_000 + talweg.rank(), np.float32)
                expect(talweg.Mismatch, "f32[30001]", talweg.push_pull, other, name)
        if size > 1:  # Channels that have made no such tensor yet.
            name = "differs at first"
            for count in (3, 4):
                talweg.push_pull(np.ones(count, np.float32), name)
            for _ in range(3):
                expect(talweg.Mismatch, "f32[30001]", talweg.push_pull, other, name)
                assert (talweg.push_pull(own, name, talweg.Op.MAX) == own).all()


def objects_of_several_rounds() -> None:
    """Objects have lengths just below and above that of one round, and of two."""
    with mock.patch.object(objects, "_CHUNK_BYTES", 1024):
        before = _declared()
        for length in (0, 1000, 1010, 1020, 1030, 2030, 2040, 2050, 10_000):
            text = "".join(str(i % 10) for i in range(length))
            root = length % talweg.size()
            assert talweg.broadcast_object(text + str(talweg.rank()), root) == text + str(root)
        assert _declared() <= before + 3 * talweg.size()


def many_open_rounds_without_names() -> None:
    """More rounds are open than there are tensors. The oldest are taken first, and kept."""
    handles = [
        talweg.push_pull_async(np.full(33, i * (talweg.rank() + 1), np.int64), op=talweg.Op.SUM)
        for i in range(100)
    ]
    arrays: list[np.ndarray] = [np.full(1 << 20, i + talweg.rank(), np.float64) for i in range(6)]
    in_place = [talweg.push_pull_async_inplace(array, op=talweg.Op.MIN) for array in arrays]
    assert talweg.poll(handles[0])
    for i, handle in reversed(list(enumerate(handles))):
        assert (talweg.synchronize(handle) == i * _sum_of_ranks()).all(), i
    expect(talweg.Busy, "synchronized before", talweg.synchronize, handles[0])
    for i, handle in enumerate(in_place):
        assert talweg.synchronize(handle) is arrays[i] and (arrays[i] == i).all(), i


def refused_arguments() -> None:
    """The error names the value as it was given, and the tensor is unchanged."""
    ones: np.ndarray = np.ones(3, np.float32)
    push = talweg.push_pull
    invalid = talweg.InvalidArgument
    for root in (-1, talweg.size(), 2**32):
        expect(invalid, f"root_rank is {root}", talweg.broadcast, ones.copy(), root)
        expect(invalid, f"root_rank is {root}", talweg.broadcast_object, "x", root)
    for priority in (2**31, -(2**31), 2**40):
        expect(invalid, f"priority is {priority}", push, ones, name="p", priority=priority)
    for timeout in (-1, math.nan, -math.inf):
        expect(invalid, f"timeout_s is {timeout}", push, ones, name="t", timeout_s=timeout)
    expect(invalid, "1 to 1024 bytes", push, ones, name="")
    expect(invalid, "1 to 1024 bytes", push, ones, name="ü" * 513)
    expect(invalid, "NUL", push, ones, name="a\0b")
    expect(invalid, "UTF-8", push, ones, name="\udc80")
    expect(invalid, "not int", push, ones, name=7)
    expect(invalid, "op is 99", push, ones, name="o", op=99)
    expect(invalid, "op is 'sum'", push, ones, name="o", op="sum")
    expect(invalid, "pass a tensor's name as name='weights'", push, ones, "w", "weights")
    expect(
        invalid,
        "pass a tensor's name as name='weights'",
        talweg.push_pull_async,
        ones,
        op="weights",
    )
    expect(invalid, "op is True; it must be one of Op.SUM", push, ones, True)
    expect(invalid, "op is 99", push, ones, 99, "o")
    expect(invalid, "average is 'o'; it must be True or False", push, ones, average="o")
    expect(invalid, "op is False", talweg.declare, "d", np.float32, 3, False)
    expect(invalid, "average", push, np.ones(3, np.int32), name="a")
    expect(invalid, "count is -1", talweg.declare, "d", np.float32, -1)
    talweg.declare("nothing", np.float32, 0)
    expect(invalid, "16 GiB", talweg.declare, "d", np.float32, 2**62)
    expect(invalid, "16 GiB", talweg.declare, "d", np.int8, 2**34 + 1, talweg.Op.SUM)
    assert push(np.ones((0, 4), np.float32), name="empty").shape == (0, 4)
    expect(invalid, "list", push, [1.0], name="l")
    expect(invalid, ">f4", push, np.ones(3, ">f4"), name="b")
    expect(invalid, "object", push, np.array([None, 1]), name="b")
    expect(invalid, "masked", push, np.ma.masked_array(ones, [0, 1, 0]), name="m")
    expect(invalid, "contiguous", talweg.push_pull_inplace, np.ones((3, 4), np.float32).T)
    read_only = ones.copy()
    read_only.flags.writeable = False
    expect(invalid, "read-only", talweg.push_pull_inplace, read_only)
    expect(invalid, "read-only", talweg.broadcast, read_only)
    # Every name above is still free, and infinity is a valid time limit.
    for name in ("p", "t", "o", "a", "d", "l", "b", "m"):
        assert (push(ones, name=name, op=talweg.Op.MAX, timeout_s=math.inf) == 1).all()
    expect(invalid, "f32[3] max", talweg.declare, "p", np.float64, 3, talweg.Op.MAX)
    # All ranks may use a name in another way in the same call.
    assert (push(ones.astype(np.float64), name="p", op=talweg.Op.MAX) == 1).all()
    assert (push(ones, name="p", op=talweg.Op.SUM) == talweg.size()).all()
    talweg.declare("p", np.float32, 3)


def arguments_in_the_old_order() -> None:
    """Calls also take the operation before the name."""
    size, own = talweg.size(), talweg.rank() + 1
    array: np.ndarray = np.full(3, own, np.float32)
    for name in ("push_pull", "push_pull_inplace", "push_pull_async", "push_pull_async_inplace"):
        push: Any = getattr(talweg, name)

        def pushed(*arguments: Any, push: Any = push, **keywords: Any) -> np.ndarray:
            result = push(array.copy(), *arguments, **keywords)
            return talweg.synchronize(result) if isinstance(result, talweg.Handle) else result

        assert (pushed(f"{name}.mean") == (size + 1) / 2).all()
        assert (pushed(f"{name}.max", talweg.Op.MAX) == size).all()
        assert (pushed(None, talweg.Op.SUM, priority=1) == _sum_of_ranks()).all()
        assert (pushed(f"{name}.sum", average=False) == _sum_of_ranks()).all()
        of_all: tuple[Any, ...] = (talweg.Op.MAX, f"{name}.max", 1)
        if "async" not in name:
            of_all += (60.0,)
        for arguments in ((talweg.Op.MAX, f"{name}.max"), of_all, (int(talweg.Op.MAX),)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert (pushed(*arguments) == size).all()
            [warning] = caught
            assert warning.category is DeprecationWarning and warning.filename == __file__
            assert f"{name}() has the tensor's name" in str(warning.message), warning.message
            assert "pass op=..." in str(warning.message), warning.message
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expect(TypeError, "'op'", push, array, talweg.Op.MAX, op=talweg.Op.SUM)
            expect(TypeError, "arguments", push, array, *of_all, *of_all)
            expect(TypeError, "arguments", push, array, "n", talweg.Op.MAX, 1)
    assert (array == own).all()


def a_handle_of_a_job_that_was_left() -> None:
    """Such a handle is refused, because its tensor's number may mean another one later."""
    array: np.ndarray = np.zeros(3, np.float32)
    handle = talweg.push_pull_async_inplace(array, name="left")
    if talweg.size() > 1:
        talweg.barrier()
        return  # A job of several ranks does not go on when ranks have left it.
    talweg.shutdown()
    talweg.init()
    again = talweg.push_pull_async(np.ones(1_000_000, np.float32), name="left.second")
    expect(talweg.Closed, "'left'", talweg.synchronize, handle)
    expect(talweg.Closed, "'left'", talweg.poll, handle)
    assert (talweg.synchronize(again) == 1).all()


class _Interrupted(Exception):
    """Stands for Ctrl-C."""


def _interrupt(*_: object) -> None:
    raise _Interrupted


def an_interrupted_barrier() -> None:
    """An interrupt ends the wait for late ranks, and the next call waits for the same barrier."""
    if talweg.size() > 1 and talweg.rank() == 0:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        expect(_Interrupted, "", talweg.barrier)
    talweg.push_pull(np.ones(1, np.int32), op=talweg.Op.SUM, name="interrupted")
    for _ in range(3):
        talweg.barrier()


def two_threads_in_a_barrier() -> None:
    if talweg.size() > 1 and talweg.rank() == 0:
        other = threading.Thread(target=talweg.barrier)
        other.start()
        while not _client.current()._in_barrier:
            os.sched_yield()
        expect(talweg.Busy, "another thread", talweg.barrier)
        talweg.push_pull(np.ones(1, np.int32), op=talweg.Op.SUM, name="threads")
        other.join()
    else:
        talweg.push_pull(np.ones(1, np.int32), op=talweg.Op.SUM, name="threads")
        talweg.barrier()


def a_forked_child_that_joins() -> None:
    """A forked child joins in its parent's place, when the parent has left."""
    if talweg.size() > 1:
        return
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            assert not talweg.is_initialized()
            expect(talweg.Forked, "is a fork", talweg.barrier)
            os.read(read, 1)
            talweg.init()
            assert talweg.is_initialized() and talweg.rank() == 0
            assert (talweg.push_pull(np.ones(3, np.float32), name="child") == 1).all()
            talweg.shutdown()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    talweg.shutdown()
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    talweg.init()
    pid = os.fork()
    if pid == 0:
        talweg.shutdown()  # It does not leave the parent's job.
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (talweg.push_pull(np.ones(3, np.float32), name="parent") == 1).all()


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise LookupError("it stays here")


def a_state_that_cannot_be_pickled() -> None:
    """All ranks are told, while the source lives on."""
    state = talweg.State(weights=np.zeros(3), value=_Unpicklable(), step=0)
    if talweg.size() == 1:
        state.begin()
    elif talweg.rank() == 0:
        expect(LookupError, "it stays here", state.begin)
    else:
        text = "rank 0 cannot pickle its object (LookupError: it stays here)"
        expect(talweg.InvalidArgument, text, state.begin)
    talweg.barrier()
    weights: np.ndarray = np.full(3, talweg.rank(), np.float32)
    state = talweg.State(weights=weights, step=talweg.rank())
    assert not state.begin()
    assert state.step == 0 and not weights.any()
    talweg.barrier()


def what_is_said_of_the_package() -> None:
    assert library().talweg_version().decode() == talweg.__version__
    before = talweg.pushed_bytes()
    talweg.push_pull(np.ones((3, 5), np.float64), name="counted")
    assert talweg.pushed_bytes() == before + 120


def arrays_in_place() -> None:
    """Results come into the array itself, also where ranks cannot sum it in place."""
    size, own = talweg.size(), talweg.rank() + 1
    for dtype, count in ((np.float32, 6), (np.int64, 60_000), (np.float16, 300_000)):
        name = f"in place {count}"
        array = talweg.declare_in_place(name, dtype, count, talweg.Op.SUM)
        assert array.shape == (count,) and array.dtype == dtype and (array == 0).all()
        for step in range(3):
            array[:] = own + step
            result = talweg.push_pull_inplace(array.reshape(2, -1), name, talweg.Op.SUM)
            assert (array == _sum_of_ranks() + step * size).all()
            assert result.shape == (2, count // 2) and np.shares_memory(result, array)
        # Another array under the name leaves this one alone, and both go on.
        other: np.ndarray = np.full((2, count // 2), 1, dtype)
        assert (talweg.push_pull(other, name, talweg.Op.SUM) == size).all()
        assert (array == _sum_of_ranks() + 2 * size).all()
        array[:] = 2
        talweg.push_pull_inplace(array.reshape(2, -1), name, talweg.Op.SUM, prescale_factor=2.0)
        assert (array == 4 * size).all()
    handles = {}
    for index in range(4):
        array = talweg.declare_in_place(f"open {index}", np.float32, 50_000, talweg.Op.MAX)
        array[:] = own + index
        handles[index] = talweg.push_pull_async_inplace(array, f"open {index}", talweg.Op.MAX)
    for index, handle in reversed(handles.items()):
        assert (talweg.synchronize(handle) == size + index).all()
    empty = talweg.declare_in_place("nothing in place", np.float32, 0)
    assert talweg.push_pull_inplace(empty, "nothing in place").shape == (0,)
    for count in (3, 4, 3):
        talweg.push_pull(np.ones(count, np.float32), "varies", talweg.Op.SUM)
    declare = talweg.declare_in_place
    expect(talweg.InvalidArgument, "'varies' has been used", declare, "varies", np.float32, 3)
    expect(talweg.InvalidArgument, "f32[7]", declare, "in place 6", np.float32, 7, talweg.Op.SUM)
    expect(talweg.InvalidArgument, "count", declare, "negative", np.float32, -1)
    # No rank frees the name, whether the array is in place at its node or not.
    for count in (6, 60_000):
        name, words = f"in place {count}", "give the second use a name of its own"
        short: np.ndarray = np.ones(3, np.float32)
        expect(talweg.InvalidArgument, words, talweg.push_pull, short, name, talweg.Op.SUM)


def an_array_in_place_is_not_copied() -> None:
    """On one node the ranks sum the array where it lies."""
    array = talweg.declare_in_place("where it lies", np.float32, 100_000, talweg.Op.SUM)
    declared = _client.current().tensors.known("where it lies")
    assert declared is not None
    ranks_sum = talweg.size() == talweg.local_size() and not _client.current().is_alone
    assert _client.current().ranks_sum == ranks_sum
    if ranks_sum:
        again = talweg.declare_in_place("where it lies", np.float32, 100_000, talweg.Op.SUM)
        assert again.ctypes.data == array.ctypes.data
        assert declared.buffer is not None and declared.buffer.address == array.ctypes.data
    array[:] = 1
    talweg.push_pull_inplace(array, "where it lies", talweg.Op.SUM)
    assert (array == talweg.size()).all()


CASES = [
    arrays_in_place,
    an_array_in_place_is_not_copied,
    what_is_said_of_the_package,
    dtypes_and_shapes,
    rounds_without_names,
    long_arrays_of_changing_lengths,
    objects_of_several_rounds,
    many_open_rounds_without_names,
    refused_arguments,
    arguments_in_the_old_order,
    an_interrupted_barrier,
    two_threads_in_a_barrier,
    a_forked_child_that_joins,
    a_state_that_cannot_be_pickled,
    a_handle_of_a_job_that_was_left,
]


def main() -> int:
    expect(talweg.InvalidArgument, "timeout_s is -1", talweg.init, None, -1)
    talweg.init()
    run_cases(*CASES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
