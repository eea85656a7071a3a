# SPDX-License-Identifier: Apache-2.0
"""Optimizers of TensorFlow and Keras whose ranks make steps at their own pace:
docs/asynchronous.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from talweg import _client
from talweg._collectives.process_sets import ProcessSet
from talweg._exchange.asynchronous import AsynchronousSteps, require_whole
from talweg._exchange.asynchronous_arrays import Arrays
from talweg.errors import InvalidArgument, Timeout, Unsupported
from talweg.tensorflow import _engine, _graphs
from talweg.tensorflow._gradients import Choices, key_of
from talweg.tensorflow._optimizer import Steps, distribute_by
from talweg.tensorflow._variables import tf_variable

OptimizerT = TypeVar("OptimizerT")

_CALLER = "AsynchronousOptimizer"


class _Variables(Arrays):
    """Variables, whose values a step passes as arrays."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self.variables = list(variables)
        names = [each.name for each in variables]
        super().__init__(
            names, [np.zeros(each.shape, each.dtype.as_numpy_dtype) for each in variables]
        )
        # Only a session can read and change the variables of a graph of tf.compat.v1.
        self._are_at_hand = tf.compat.v1.executing_eagerly_outside_functions()

    def fetch(self) -> None:
        if self._are_at_hand:
            self.values = _graphs.read(self.variables)

    def give_back(self) -> None:
        if self._are_at_hand:
            _graphs.write(self.variables, self.values)


class _Call:
    """A call on a thread of its own, because it may wait for other ranks. See _rounds.Started."""

    def __init__(self, function: Callable[[], list[np.ndarray]]) -> None:
        self._function = function
        self._over = threading.Event()
        self._results: list[np.ndarray] = []
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, name="talweg.step", daemon=True).start()

    def _run(self) -> None:
        try:
            self._results = self._function()
        except BaseException as failure:
            self._failure = failure
        self._over.set()

    def poll(self) -> bool:
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> list[np.ndarray]:
        if not self._over.wait(timeout_s):
            raise Timeout("a step waits for other ranks")
        if self._failure is not None:
            raise self._failure
        return self._results


class _Steps(Steps):
    """Steps that use this rank's own gradients, and add how far they move the variables to the
    other ranks' variables.
    """

    def __init__(
        self,
        passes: int,
        ahead: int,
        lead: int | None,
        name: str,
        process_set: ProcessSet | None,
    ) -> None:
        super().__init__(Choices(), passes, averages_passes=False)
        self._make = lambda variables: AsynchronousSteps(
            _CALLER, variables, ahead, lead, name, process_set
        )
        self._variables: _Variables | None = None
        self._steps: AsynchronousSteps | None = None

    def combine(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(gradients)

    def apply(
        self, apply: Callable[[list[Any]], Any], gradients: list[Any], variables: Sequence[Any]
    ) -> Any:
        steps, own = self._of(variables)
        with tf.control_dependencies(self._begin(steps, own)):
            done = apply(gradients)
        with tf.control_dependencies(_operations(done)):
            ended = self._change(own, steps.after_step)
        if tf.compat.v1.executing_eagerly_outside_functions():
            return done
        return tf.group(*_operations(done), *ended)  # Nobody else runs it.

    def flush(self) -> None:
        if self._steps is not None:
            self._steps.flush()

    def _of(self, variables: Sequence[Any]) -> tuple[AsynchronousSteps, _Variables]:
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise Unsupported(
                f"{_CALLER} in a strategy with several replicas: start a rank for each device"
            )
        local = self.choices.local
        mine = [
            tf_variable(each)
            for each in variables
            if key_of(each) not in local and tf_variable(each).dtype.is_floating
        ]
        if self._steps is None or self._variables is None:
            self._variables = _Variables(mine)
            self._steps = self._make(self._variables)
        elif [key_of(each) for each in self._variables.variables] != [key_of(v) for v in mine]:
            known = ", ".join(self._variables.texts())
            raise InvalidArgument(
                f"{_CALLER}: a step changes other variables than the first one, which changed {known}: "
                "give each model an optimizer of its own, and each optimizer another `name`"
            )
        return self._steps, self._variables

    def _begin(self, steps: AsynchronousSteps, own: _Variables) -> list[Any]:
        """Agrees with the other ranks if this is a first step."""
        if tf.executing_eagerly():
            return self._change(own, steps.before_step) if steps.is_resting else []
        is_resting = _engine.call_each_time(lambda: np.int64(steps.is_resting), [])

        def begin() -> tf.Tensor:
            with tf.control_dependencies(self._change(own, steps.before_step)):
                return tf.constant(True)

        return [tf.cond(tf.equal(is_resting, 1), begin, lambda: tf.constant(False))]

    @staticmethod
    def _change(own: _Variables, call: Callable[[], None]) -> list[Any]:
        """Has `call` change the variables' values. Returns the operations that do so in a graph."""

        def changed(given: Sequence[np.ndarray]) -> list[np.ndarray]:
            own.values = list(given)
            call()
            return own.values

        part = _engine.Part(
            lambda *given: _Call(lambda: changed(given)),
            [each.read_value() for each in own.variables],
            [(each.dtype, each.shape) for each in own.variables],
        )
        [values] = _engine.run([part])
        assigned = [each.assign(value) for each, value in zip(own.variables, values)]
        return [] if tf.executing_eagerly() else [getattr(each, "op", each) for each in assigned]


def _operations(done: Any) -> list[Any]:
    return [done] if isinstance(done, (tf.Tensor, tf.Operation)) else []


def AsynchronousOptimizer(
    optimizer: OptimizerT,
    *,
    ahead: int = 1,
    lead: int | None = None,
    backward_passes_per_step: int = 1,
    name: str = "asynchronous",
    process_set: ProcessSet | None = None,
) -> OptimizerT:
    """Makes `optimizer` add its steps to those of all other ranks, without waiting for any rank.
    Returns the same object.

    `optimizer` is one of Keras 3, of tf-keras or of tf.compat.v1.train. Each rank makes steps at its
    own pace, with its own gradients, and each step of each rank moves the variables of all of them:
    n ranks need about 1/n of the learning rate of one process. The first step makes all ranks'
    variables those of the lowest rank. Variables that no step changes, and the optimizer's own, stay
    each rank's own.

    Every rank calls optimizer.flush() after its last step. Then all have equal variables. shutdown()
    and the program's end call it, too. In a graph of tf.compat.v1 the variables then keep what the
    last step has left.

    `ahead`: how many steps a rank may make while one of its movements is under way. With 0 a step
    ends when it is in the global parameters. `lead`: how many more steps a rank may make than the
    slowest one; None for any number. The gradients of several `backward_passes_per_step` are summed,
    and the last pass makes the step. A second such optimizer in one process needs another `name`.
    docs/asynchronous.md says more.
    """
    require_whole(_CALLER, ahead, lead)
    _client.current()

    def make_steps() -> Steps:
        return _Steps(backward_passes_per_step, ahead, lead, name, process_set)

    return distribute_by(optimizer, make_steps, backward_passes_per_step)
