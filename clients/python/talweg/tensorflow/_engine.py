# SPDX-License-Identifier: Apache-2.0
"""Runs collectives inside TensorFlow's graphs without blocking one of its threads.

In a graph three operations of TensorFlow make one operation of Talweg:

    start    a Python function that pushes the tensor and returns
    dequeue  an asynchronous kernel that waits for a token in the operation's queue. It occupies no
             thread meanwhile
    collect  a Python function that returns the result, which has arrived by then

One thread of this process waits for the rounds and puts the tokens into the queues. So every
operation of a graph starts when its inputs are there, in any order, even if TensorFlow has few
threads.

A Python function can raise only some of TensorFlow's errors. If the kernel's library is loaded,
collect returns a failure's code and text, and an operation of the library raises the right error.

When TensorFlow executes eagerly, an operation is started and waited for at once. A graph of
tf.compat.v1 has no queue that the thread can reach. There collect waits, on a thread that is not
one of the session's.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from talweg.errors import TalwegError, Timeout, Unsupported
from talweg.tensorflow import _kernel
from talweg.tensorflow._rounds import Started

# How long the waiting thread waits for one round before it polls the others.
_LOOK_S = 0.001
# How long it waits for a round that is over. A call of a free name may then take further rounds.
_TAKE_S = 0.05


class Part(NamedTuple):
    """A round of an operation."""

    start: Callable[..., Started]  # Called with an array for each of the inputs.
    inputs: Sequence[tf.Tensor]
    outputs: Sequence[tuple[tf.DType, Any]]  # The dtype and the static shape of each result.


class _Waiter:
    """The thread that waits for rounds, and what it waits for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._new: list[tuple[Started, Callable[..., None]]] = []
        threading.Thread(target=self._run, name="talweg-tensorflow", daemon=True).start()

    def add(self, pending: Started, done: Callable[..., None]) -> None:
        """Calls `done` when the round is over: with (results, None), or with (None, the error)."""
        with self._changed:
            self._new.append((pending, done))
            self._changed.notify()

    def _run(self) -> None:
        open_: list[tuple[Started, Callable[..., None]]] = []
        while True:
            with self._changed:
                while not self._new and not open_:
                    self._changed.wait()
                open_ += self._new
                self._new = []
            left = [each for each in open_ if not self._take(*each, 0.0)]
            if left and len(left) == len(open_) and self._take(*left[0], _LOOK_S):
                left.pop(0)
            open_ = left

    def _take(self, pending: Started, done: Callable[..., None], look_s: float) -> bool:
        if not look_s and not pending.poll():
            return False
        try:
            results = pending.wait(look_s or _TAKE_S)
        except Timeout:
            return False
        except Exception as failure:
            done(None, failure)
            return True
        done(results, None)
        return True


_waiters: dict[int, _Waiter] = {}
_waiters_lock = threading.Lock()


def _waiter() -> _Waiter:
    with _waiters_lock:  # After a fork the child has none of its parent's threads.
        found = _waiters.get(os.getpid())
        if found is None:
            _waiters.clear()
            found = _waiters[os.getpid()] = _Waiter()
        return found


class _Ticket:
    """One execution of one part."""

    def __init__(self) -> None:
        self.results: list[np.ndarray] = []
        self.failure: Exception | None = None
        self.over = threading.Event()


# A site forgets an execution that TensorFlow has given up after so many further ones.
_TICKETS_MAX = 4096


class _Site:
    """An operation in a graph."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._tickets: dict[int, _Ticket] = {}
        self._queue: Any = None

    def make_queue(self) -> tf.Tensor | None:
        """Makes the queue and returns the tokens of an execution; None in tf.compat.v1's graphs."""
        with tf.init_scope():
            if not tf.executing_eagerly():
                return None
            self._queue = tf.queue.FIFOQueue(2**31 - 1, [tf.int64], shapes=[()])
        return self._queue.dequeue_many(len(self._parts))

    def starter(self, index: int) -> Callable[..., np.int64]:
        start_part = self._parts[index].start

        def start(*arrays: Any) -> np.int64:
            pending = start_part(*(np.asarray(array) for array in arrays))
            ticket = _Ticket()
            with self._lock:
                number = next(self._numbers)
                self._tickets[number] = ticket
                if len(self._tickets) > _TICKETS_MAX:
                    del self._tickets[next(iter(self._tickets))]
            _waiter().add(pending, lambda *ended: self._on_end(number, ticket, *ended))
            return np.int64(number)

        return start

    def _on_end(
        self, number: int, ticket: _Ticket, results: list[np.ndarray] | None, failure: Any
    ) -> None:
        ticket.results, ticket.failure = results or [], failure
        ticket.over.set()
        if self._queue is not None:
            self._queue.enqueue(np.int64(number))

    def collect(self, *given: Any) -> list[np.ndarray]:
        """Returns the results of all parts. `given`: each part's ticket number, then the tokens."""
        numbers = [int(number) for number in given[: len(self._parts)]]
        with self._lock:
            tickets = [self._tickets.pop(number) for number in numbers]
        for ticket in tickets:
            # It waits if there is no queue, or if TensorFlow has given up an earlier execution.
            ticket.over.wait()
        if self._queue is not None:
            # An execution that was given up has left its tokens before this one's.
            missing = set(numbers) - {int(token) for token in given[-1]}
            while missing:
                missing.discard(int(self._queue.dequeue()))
        for ticket in tickets:
            if ticket.failure is not None:
                raise ticket.failure
        return [each for ticket in tickets for each in ticket.results]


def require_no_xla() -> None:
    """Raises Unsupported if XLA compiles the function that is traced now.

    Without this TensorFlow fails when the function runs, and names neither Talweg nor a remedy.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        get_context = getattr(graph, "_get_control_flow_context", None)
        context = None if get_context is None else get_context()
        while context is not None:
            if context.IsXLAContext():
                raise Unsupported(
                    "XLA compiles this function, and cannot compile Talweg's operations: pass "
                    "jit_compile=False to tf.function or to model.compile()"
                )
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)


def call_each_time(function: Callable[..., np.int64], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns `function`'s result as a tensor; each execution of the current graph calls it once.

    TensorFlow does not fold the call, even if the inputs are constants.
    """
    number = tf.numpy_function(function, list(inputs), tf.int64)
    number.set_shape(())
    _kernel.run_independently(number.op)
    return number


def run(parts: Sequence[Part]) -> list[list[tf.Tensor]]:
    """Returns the results of each part. Each starts when its inputs are there; all end together."""
    if tf.executing_eagerly():
        return _run_eagerly(parts)
    require_no_xla()
    site = _Site(parts)
    numbers = [call_each_time(site.starter(at), part.inputs) for at, part in enumerate(parts)]
    token = site.make_queue()
    dtypes = [dtype for part in parts for dtype, _ in part.outputs]
    loaded = _kernel.kernel()
    collect = site.collect
    if loaded is not None:
        collect = _telling(collect, dtypes)
        dtypes = [tf.int32, tf.string, *dtypes]
    # All parts start before this, because it may wait.
    if token is None:
        collected = _on_own_thread(collect, numbers, dtypes)
    else:
        collected = tf.numpy_function(collect, [*numbers, token], dtypes, stateful=False)
    if loaded is not None:
        code, text, *collected = collected
        with tf.control_dependencies([loaded.check(code, text)]):
            collected = [tf.identity(each) for each in collected]
    results = iter(collected)
    placed = []
    for part in parts:
        own = [next(results) for _ in part.outputs]
        for result, (_, shape) in zip(own, part.outputs):
            result.set_shape(shape)
        placed.append(own)
    return placed


def _telling(
    collect: Callable[..., list[np.ndarray]], dtypes: Sequence[tf.DType]
) -> Callable[..., list[Any]]:
    """Returns `collect` with a failure's code and text before the results; the code 0 is none."""

    def telling(*given: Any) -> list[Any]:
        try:
            return [np.int32(0), b"", *collect(*given)]
        except TalwegError as failure:
            unused = [np.zeros((), each.as_numpy_dtype) for each in dtypes]
            return [np.int32(_kernel.code_of(failure)), str(failure).encode(), *unused]

    return telling


def _on_own_thread(
    function: Callable[..., list[np.ndarray]],
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """Replaces tf.numpy_function(). It occupies none of a session's threads while it waits.

    TensorFlow computes a dataset's only element on a thread of that kernel. The function that maps
    the element runs on the same thread if it is declared to need no parallelism.
    """

    @tf.function(input_signature=[tf.TensorSpec((), each.dtype) for each in inputs])
    def mapped(*given: tf.Tensor) -> list[tf.Tensor]:
        results = tf.numpy_function(function, list(given), list(dtypes), stateful=False)
        return list(results)

    unknown = [tf.TensorShape(None)] * len(dtypes)
    element = tf.raw_ops.TensorDataset(
        components=list(inputs), output_shapes=[each.shape for each in inputs]
    )
    dataset = tf.raw_ops.MapDataset(
        input_dataset=element,
        other_arguments=[],
        f=mapped.get_concrete_function(),
        output_types=list(dtypes),
        output_shapes=unknown,
        use_inter_op_parallelism=False,
    )
    results = tf.raw_ops.DatasetToSingleElement(
        dataset=dataset, output_types=list(dtypes), output_shapes=unknown
    )
    return list(results)


def _run_eagerly(parts: Sequence[Part]) -> list[list[tf.Tensor]]:
    pending: list[Started] = []
    failure: Exception | None = None
    for part in parts:
        try:
            pending.append(part.start(*(np.asarray(each.numpy()) for each in part.inputs)))
        except Exception as error:
            failure = failure or error
    results = []
    for each in pending:  # Even after a failure: an open round blocks its name.
        try:
            results.append(each.wait())
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return [
        [tf.convert_to_tensor(array, dtype) for array, (dtype, _) in zip(arrays, part.outputs)]
        for arrays, part in zip(results, parts)
    ]
