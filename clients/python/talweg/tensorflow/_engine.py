# SPDX-License-Identifier: Apache-2.0
"""Runs collectives inside TensorFlow's graphs without blocking one of its threads.

In a graph an operation is three of TensorFlow's own:

    start    a Python function that pushes the tensor and returns
    dequeue  TensorFlow's own asynchronous kernel: it waits for a token in a queue of the operation
             and occupies no thread meanwhile
    collect  a Python function that hands the result over, which is there

One thread of this process waits for the rounds and puts the tokens in. So all operations of a graph
start when their inputs are there, in whatever order, with however few threads TensorFlow has.

When TensorFlow executes eagerly, an operation starts and is waited for at once. In a graph of
tf.compat.v1 there is no queue that this thread could reach: collect waits there, after all starts
of its operation.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from talweg.errors import Timeout
from talweg.tensorflow._rounds import Pending

# How long the waiting thread looks at one round before it looks at the others.
_LOOK_S = 0.001


class Part(NamedTuple):
    """One round of an operation."""

    start: Callable[..., Pending]  # Given an array for each of the inputs.
    inputs: Sequence[tf.Tensor]
    outputs: Sequence[tuple[tf.DType, Any]]  # dtype and static shape of each result.


class _Waiter:
    """The thread that waits for rounds."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._new: list[tuple[Pending, Callable[..., None]]] = []
        threading.Thread(target=self._run, name="talweg-tensorflow", daemon=True).start()

    def add(self, pending: Pending, done: Callable[..., None]) -> None:
        """Has `done` called with the results and None, or None and what was raised."""
        with self._changed:
            self._new.append((pending, done))
            self._changed.notify()

    def _run(self) -> None:
        open_: list[tuple[Pending, Callable[..., None]]] = []
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

    def _take(self, pending: Pending, done: Callable[..., None], look_s: float) -> bool:
        if not look_s and not pending.poll():
            return False
        try:
            results = pending.wait(look_s if look_s else None)
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
    with _waiters_lock:  # A fork has none of its parent's threads.
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


# Executions that TensorFlow has given up are forgotten after so many further ones.
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
        """What tells the graph that an execution is over; None where nothing can."""
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
        """`given`: the number of each part's ticket, then their tokens."""
        numbers = [int(number) for number in given[: len(self._parts)]]
        with self._lock:
            tickets = [self._tickets.pop(number) for number in numbers]
        for ticket in tickets:
            ticket.over.wait()  # Only where there is no queue, or an execution was given up.
        if self._queue is not None:
            # Such a one has left its tokens, and this one's stand after them.
            missing = set(numbers) - {int(token) for token in given[-1]}
            while missing:
                missing.discard(int(self._queue.dequeue()))
        for ticket in tickets:
            if ticket.failure is not None:
                raise ticket.failure
        return [each for ticket in tickets for each in ticket.results]


def run(parts: Sequence[Part]) -> list[list[tf.Tensor]]:
    """The results of each part. All start when their inputs are there, and are there together."""
    if tf.executing_eagerly():
        return _run_eagerly(parts)
    graph = tf.compat.v1.get_default_graph()
    site = _Site(parts)
    numbers = []
    for index, part in enumerate(parts):
        number = tf.numpy_function(site.starter(index), list(part.inputs), tf.int64)
        number.set_shape(())
        # It is executed, once, but not in the order of the program: ranks may have other orders.
        manager = getattr(graph, "experimental_acd_manager", None)
        if manager is not None:
            manager.run_independently(number.op)
        numbers.append(number)
    token = site.make_queue()
    outputs = [output for part in parts for output in part.outputs]
    # After all of them have started: it may wait.
    collected = tf.numpy_function(
        site.collect,
        [*numbers, *([] if token is None else [token])],
        [dtype for dtype, _ in outputs],
        stateful=False,
    )
    results = iter(collected)
    placed = []
    for part in parts:
        own = [next(results) for _ in part.outputs]
        for result, (_, shape) in zip(own, part.outputs):
            result.set_shape(shape)
        placed.append(own)
    return placed


def _run_eagerly(parts: Sequence[Part]) -> list[list[tf.Tensor]]:
    pending: list[Pending] = []
    failure: Exception | None = None
    for part in parts:
        try:
            pending.append(part.start(*(np.asarray(each.numpy()) for each in part.inputs)))
        except Exception as error:
            failure = failure or error
    results = []
    for each in pending:  # All of them, also after a failure: an open one blocks its name.
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
