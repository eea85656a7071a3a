# SPDX-License-Identifier: Apache-2.0
"""push_pull() and broadcast() of NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from talweg import _client
from talweg._arguments import chosen_op, listed, takes_old_order
from talweg._client import Handle
from talweg._client.left_rounds import finish_call
from talweg._collectives import queued, rounds
from talweg._collectives.many_rounds import run_many, start_many
from talweg._collectives.numpy_calls import contiguous, real_pairs
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._declaration import Declaration, Op, numpy_dtype
from talweg.errors import InvalidArgument, WrongType

_old_order = takes_old_order("op", "name", "priority", "timeout_s")


def start(
    array: np.ndarray,
    out: np.ndarray,
    op: Op,
    name: str | None,
    priority: int,
    root_rank: int,
    process_set: ProcessSet | None,
    factors: Factors = NO_FACTORS,
    is_blocking: bool = False,
    queues: bool = False,
) -> Handle:
    """Starts a round of `array`, whose result goes to `out`. With `queues` it waits for its turn
    if a round of its name is open; otherwise Busy is raised.
    """
    client = _client.current()
    operation = "broadcast" if op is Op.BROADCAST else "push_pull"
    group = Group(client, process_set, operation)
    group.require_root(root_rank if op is Op.BROADCAST else group.ranks[0], operation)
    source = real_pairs(contiguous(array), op)
    dtype = numpy_dtype(source.dtype)
    factors.require(dtype, operation)
    begin = queued.start if queues else rounds.start
    return begin(
        client,
        name,
        group,
        rounds.Brought(
            Declaration(dtype, source.size, op, root_rank, group.listed, source.shape),
            source.ctypes.data,
            out.ctypes.data,
            out,
            (source, out),
            priority,
            factors,
            stays=is_blocking or out is array,
            is_async=not is_blocking,
        ),
    )


@_old_order
def push_pull_async(
    array: np.ndarray,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Handle:
    """Starts a round of `array` and returns its handle. The array may be changed at once.

    Takes arrays of any shape: f32, f64, f16, integers of 8 to 64 bits with and without a sign, bool
    (min, max and bitwise), complex64 and complex128 (sum and average). `op` combines the ranks'
    elements. Without `op` they are averaged, or summed if `average` is False. There is no average
    of integers, no bitwise operation on floats, no sum, average or product of bools. Rounds with a
    larger `priority` overtake others. Rounds without a name are matched by the order of these
    calls, which must be the same at every rank; two are under way at once, so name tensors if you
    have many. A name is fastest if all its calls are alike. Only the ranks of `process_set` take
    part. `prescale_factor` multiplies what each rank gives, `postscale_factor` the result, both by
    talweg_scale() of talweg.h: 16-bit floats in float32, integers in float64, towards zero. A call
    whose name has an open round begins when that round is over. If the ranks' calls do not fit
    together, this call or synchronize() raises Mismatch at every rank.
    """
    out = np.empty(array.shape, dtype=array.dtype) if isinstance(array, np.ndarray) else array
    factors = Factors(prescale_factor, postscale_factor)
    operation = chosen_op(op, average)
    return start(array, out, operation, name, priority, 0, process_set, factors, queues=True)


@_old_order
def push_pull(
    array: np.ndarray,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
) -> np.ndarray:
    """Runs push_pull_async() and synchronize(); returns a new array of the same shape."""
    client, operation = _client.current(), chosen_op(op, average)
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    out = np.empty(array.shape, dtype=array.dtype) if isinstance(array, np.ndarray) else array
    factors, waits = Factors(prescale_factor, postscale_factor), timeout_s is None
    handle = start(array, out, operation, name, priority, 0, process_set, factors, waits, True)
    result: np.ndarray = finish_call(client, handle, left_s)
    return result


@_old_order
def push_pull_async_inplace(
    array: np.ndarray,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Handle:
    """Does the same as push_pull_async(), but synchronize() writes the result into `array`.

    `array` must be C-contiguous and writable. Do not read or write it before synchronize().
    """
    _require_writable(array, "an in-place push_pull")
    factors = Factors(prescale_factor, postscale_factor)
    operation = chosen_op(op, average)
    return start(array, array, operation, name, priority, 0, process_set, factors, queues=True)


@_old_order
def push_pull_inplace(
    array: np.ndarray,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
) -> np.ndarray:
    """Does the same as push_pull(), but writes the result into `array` and returns `array`."""
    client = _client.current()
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    handle = push_pull_async_inplace(
        array,
        name=name,
        op=op,
        average=average,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        priority=priority,
    )
    finish_call(client, handle, left_s)
    return array


def _require_writable(array: np.ndarray, operation: str) -> None:
    if not isinstance(array, np.ndarray):
        raise WrongType(
            f"{operation} writes its result into a numpy.ndarray, which {type(array).__name__} is "
            "not: pass numpy.array(...), and keep it"
        )
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{operation} writes its result into a C-contiguous array, which this one is not: pass "
            "numpy.ascontiguousarray(array), and keep that copy"
        )
    if not array.flags.writeable:
        raise InvalidArgument(
            f"{operation} writes its result into a writable array; this one is read-only: pass "
            "array.copy(), and keep it"
        )


def broadcast(
    array: np.ndarray,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
    timeout_s: float | None = None,
) -> np.ndarray:
    """Makes every rank's `array` the root's, byte for byte, in place; returns `array`.

    `root_rank` is a rank of the job, also if `process_set` is given.
    """
    client = _client.current()
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    handle = broadcast_async(array, root_rank, name, process_set, priority=priority)
    finish_call(client, handle, left_s)
    return array


def broadcast_async(
    array: np.ndarray,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
) -> Handle:
    """Starts broadcast(). Do not read or write the array before synchronize()."""
    _require_writable(array, "broadcast")
    of = (Op.BROADCAST, name, priority, root_rank, process_set)
    return start(array, array, *of, queues=True)


# ----- Many arrays -----


def _settle(every: Sequence[np.ndarray], name: str | None, op: Op, options: dict[str, Any]) -> None:
    """Declares all arrays at once: one by one, the first round of many takes seconds."""
    if name is None or options.get("process_set") is not None:
        return
    shown = [real_pairs(each, op) for each in map(contiguous, every)]
    _client.current().tensors.settle(
        (
            f"{name}.{index}",
            Declaration(numpy_dtype(each.dtype), each.size, op, 0, shape=each.shape),
            0,
        )
        for index, each in enumerate(shown)
    )


def grouped_push_pull_async(
    arrays: Iterable[np.ndarray], name: str | None = None, op: Op | None = None, **options: Any
) -> Handle:
    """Starts push_pull_async() of many arrays, with its options. Returns one handle for all.

    With a name the arrays are name.0, name.1 and so on.
    """
    every = listed(arrays, "grouped_push_pull")
    _settle(every, name, chosen_op(op, options.get("average", True)), options)
    return start_many(push_pull_async, every, name, op=op, **options)


def grouped_push_pull(
    arrays: Iterable[np.ndarray],
    name: str | None = None,
    op: Op | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Runs push_pull() of many arrays; returns a list of results."""
    every = listed(arrays, "grouped_push_pull")
    return run_many(grouped_push_pull_async, every, name, timeout_s, op=op, **options)


def grouped_push_pull_async_inplace(
    arrays: Iterable[np.ndarray], name: str | None = None, op: Op | None = None, **options: Any
) -> Handle:
    """Does the same as grouped_push_pull_async(), in place."""
    every = listed(arrays, "grouped_push_pull")
    for array in every:
        _require_writable(array, "an in-place push_pull")
    _settle(every, name, chosen_op(op, options.get("average", True)), options)
    return start_many(push_pull_async_inplace, every, name, op=op, **options)


def grouped_push_pull_inplace(
    arrays: Iterable[np.ndarray],
    name: str | None = None,
    op: Op | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Does the same as grouped_push_pull(), in place. Returns the list of arrays."""
    every = listed(arrays, "grouped_push_pull_inplace")
    return run_many(grouped_push_pull_async_inplace, every, name, timeout_s, op=op, **options)


def grouped_broadcast_async(
    arrays: Iterable[np.ndarray], root_rank: int = 0, name: str | None = None, **options: Any
) -> Handle:
    """Starts broadcast_async() of many arrays, with its options. Returns one handle for all."""
    return start_many(
        broadcast_async, listed(arrays, "grouped_broadcast"), name, root_rank, **options
    )


def grouped_broadcast(
    arrays: Iterable[np.ndarray],
    root_rank: int = 0,
    name: str | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Runs broadcast() of many arrays, in place. Returns the list of arrays."""
    every = listed(arrays, "grouped_broadcast")
    return run_many(grouped_broadcast_async, every, name, timeout_s, root_rank, **options)
