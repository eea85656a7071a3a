# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose gradients are combined over the ranks: Keras 3's, tf-keras's, tf.compat.v1's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from talweg import _client
from talweg._client import Client
from talweg.errors import InvalidArgument, Unsupported
from talweg.tensorflow import _gradients
from talweg.tensorflow._gradients import Choices
from talweg.tensorflow._ops import plain

OptimizerT = TypeVar("OptimizerT")


class _Steps:
    """What an optimizer does with gradients before it applies them."""

    def __init__(self, choices: Choices, passes: int, averages_passes: bool) -> None:
        self.choices = choices
        self.passes = passes
        self._averages_passes = averages_passes
        self._sums: list[Any] = []
        self._count: Any = None
        self._is_in_graph = False  # A graph of tf.compat.v1: a session has the values.
        # A program that computes gradients by the optimizer has combined ones from then on.
        self._combines_when_computed = False
        self._minimizing = 0
        # A LossScaleOptimizer around the optimizer has combined them already.
        self.are_combined = False
        _client.call_when_replaced(self._begin_anew)

    @property
    def counter(self) -> tf.Tensor:
        """How many passes the present step has had."""
        return tf.zeros((), tf.int64) if self._count is None else self._count % self.passes

    @contextlib.contextmanager
    def minimizing(self) -> Iterator[None]:
        """Gradients are applied right after they are computed: they are combined there."""
        self._minimizing += 1
        try:
            yield
        finally:
            self._minimizing -= 1

    @contextlib.contextmanager
    def combined(self) -> Iterator[None]:
        """Gradients that are applied meanwhile are combined already."""
        before, self.are_combined = self.are_combined, True
        try:
            yield
        finally:
            self.are_combined = before

    def computed(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """What the optimizer's own methods return that compute gradients."""
        if self._minimizing or self.passes > 1:
            return list(gradients)
        self._combines_when_computed = True
        return _gradients.combine(gradients, variables, self.choices, "gradient")

    def _begin_anew(self, _: Client) -> None:
        """The job is another one, or this rank's agent was lost: a step begins with its first pass."""
        if self._count is None or self._is_in_graph:
            return
        with tf.init_scope():
            self._count.assign(0)
            for total in self._sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))

    def _make_variables(self, gradients: Sequence[Any]) -> None:
        if self._count is not None:
            return

        def zeros(shape: Any, dtype: Any) -> Any:
            return tf.Variable(
                lambda: tf.zeros(shape, dtype),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ
                if tf.distribute.get_strategy().num_replicas_in_sync > 1
                else tf.VariableSynchronization.AUTO,
                aggregation=tf.VariableAggregation.SUM,
            )

        self._is_in_graph = not tf.compat.v1.executing_eagerly_outside_functions()
        with tf.init_scope():
            self._sums = [
                None if each is None else zeros(each.shape, each.dtype) for each in gradients
            ]
            self._count = tf.Variable(0, trainable=False, dtype=tf.int64)

    def step(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        apply: Callable[[list[Any]], Any],
        skip: Callable[[], Any],
    ) -> Any:
        """Has `apply` take the combined gradients, in the last of each step's passes; else `skip`."""
        if self.passes == 1 and self._combines_when_computed and not self._minimizing:
            return apply(list(gradients))
        if self.passes == 1:
            return apply(_gradients.combine(gradients, variables, self.choices, "gradient"))
        dense = [each if each is None else tf.convert_to_tensor(each) for each in gradients]
        self._make_variables(dense)
        added = [
            total.assign_add(each)
            for total, each in zip(self._sums, dense)
            if each is not None and total is not None
        ]
        with tf.control_dependencies(added):
            count = self._count.assign_add(1)

        def last() -> Any:
            totals = [None if total is None else total.read_value() for total in self._sums]
            if self._averages_passes:
                totals = [
                    None if each is None else each / tf.cast(self.passes, each.dtype)
                    for each in totals
                ]
            combined = _gradients.combine(totals, variables, self.choices, "gradient")
            with tf.control_dependencies([each for each in combined if each is not None]):
                cleared = [
                    total.assign(tf.zeros_like(total)) for total in self._sums if total is not None
                ]
            with tf.control_dependencies(cleared):
                return _after(apply(combined), True)

        def other() -> Any:
            return _after(skip(), False)

        if tf.executing_eagerly():
            return last() if int(count) % self.passes == 0 else other()
        return tf.cond(tf.equal(count % self.passes, 0), last, other)


def _after(done: Any, value: bool) -> tf.Tensor:
    """The value, when that is done: a graph of tf.compat.v1 leaves out what nothing depends on."""
    operations = [done] if isinstance(done, (tf.Tensor, tf.Operation)) else []
    with tf.control_dependencies(operations):
        return tf.identity(tf.constant(value))


class _Methods:
    """What every optimizer gets."""

    _talweg_steps: _Steps

    def register_local_var(self, var: Any) -> None:
        """The gradients of this variable are not combined."""
        self._talweg_steps.choices.add_local([var])


class _Keras3Methods(_Methods):
    """What an optimizer of Keras 3 gets."""

    @plain
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Keras's, of the ranks' gradients combined."""
        base: Any = super()
        return _apply_combined(self, self._talweg_steps, base.apply, grads, trainable_variables)


def _apply_combined(
    own: Any, steps: _Steps, apply: Callable[..., Any], grads: Any, trainable_variables: Any
) -> Any:
    """Has `apply`, of an optimizer of Keras 3, take the ranks' gradients combined."""
    if steps.are_combined:
        return apply(grads, trainable_variables)
    variables = own._trainable_variables if trainable_variables is None else trainable_variables
    variables = list(variables)
    if steps.passes > 1 and not own.built:
        with tf.init_scope():  # Not within a branch.
            own.build(variables)
            own.built = True

    def apply_all(combined: list[Any]) -> None:
        apply(combined, trainable_variables)

    return steps.step(list(grads), variables, apply_all, lambda: own.iterations.assign_add(1))


def _combine_before_scaling(scaling: Any) -> None:
    """Has Keras 3's LossScaleOptimizer combine gradients before it looks at them.

    It leaves a step out whose gradients are not finite. What it looks at must be alike at all
    ranks, also where the optimizer within it is the one that combines. With mixed_float16
    Model.compile() puts one around any optimizer.
    """
    if "_talweg_apply" in vars(scaling):
        return
    scaling._talweg_apply = scaling.apply

    @plain
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        steps = getattr(self.inner_optimizer, "_talweg_steps", None)
        if steps is None:
            return self._talweg_apply(grads, trainable_variables)

        def apply_scaled(combined: Any, variables: Any) -> Any:
            with steps.combined():
                return self._talweg_apply(combined, variables)

        if isinstance(self, _Keras3Methods):  # It is distributed as well, and has combined them.
            return apply_scaled(grads, trainable_variables)
        return _apply_combined(self, steps, apply_scaled, grads, trainable_variables)

    scaling.apply = apply


class _TfKerasMethods(_Methods):
    """What an optimizer of tf-keras gets, also one of its legacy ones."""

    def minimize(self, *arguments: Any, **keywords: Any) -> Any:
        """Keras's, of the ranks' gradients combined."""
        with self._talweg_steps.minimizing():
            return super().minimize(*arguments, **keywords)  # type: ignore[misc]

    @plain
    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Keras's, combined over the ranks; apply_gradients() takes them as they are.

        So a check of them, as that of a LossScaleOptimizer, has one outcome at all ranks.
        """
        return self._compute_gradients(loss, var_list, None, tape)

    @plain
    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Any:
        base: Any = super()
        if hasattr(base, "_compute_gradients"):  # A legacy one.
            pairs = base._compute_gradients(loss, var_list, grad_loss, tape=tape)
        else:
            pairs = base.compute_gradients(loss, var_list, tape)
        variables = [variable for _, variable in pairs]
        gradients = self._talweg_steps.computed([gradient for gradient, _ in pairs], variables)
        return list(zip(gradients, variables))

    @plain
    def get_gradients(self, loss: Any, params: Any) -> Any:
        """Keras's, combined over the ranks; only legacy optimizers have it."""
        gradients = super().get_gradients(loss, params)  # type: ignore[misc]
        return self._talweg_steps.computed(gradients, params)

    @plain
    def apply_gradients(
        self, grads_and_vars: Any, name: str | None = None, *arguments: Any, **keywords: Any
    ) -> Any:
        """Keras's, of the ranks' gradients combined."""
        own: Any = self
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        base: Any = super()
        if self._talweg_steps.passes > 1 and hasattr(own, "build"):
            with tf.init_scope():  # Not within a branch.
                own.build(variables)

        def apply(combined: list[Any]) -> Any:
            return base.apply_gradients(
                list(zip(combined, variables)), name, *arguments, **keywords
            )

        gradients = [gradient for gradient, _ in pairs]
        return self._talweg_steps.step(
            gradients, variables, apply, lambda: own.iterations.assign_add(1)
        )


class _V1Methods(_Methods):
    """What an optimizer of tf.compat.v1.train gets."""

    @plain
    def compute_gradients(self, *arguments: Any, **keywords: Any) -> Any:
        """TensorFlow's, combined over the ranks."""
        base: Any = super()
        pairs = base.compute_gradients(*arguments, **keywords)
        if self._talweg_steps.passes > 1:  # In apply_gradients().
            return pairs
        variables = [variable for _, variable in pairs]
        gradients = [gradient for gradient, _ in pairs]
        combined = _gradients.combine(gradients, variables, self._talweg_steps.choices, "gradient")
        return list(zip(combined, variables))

    @plain
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """TensorFlow's; with several passes a step, of the combined sum of their gradients."""
        base: Any = super()
        if self._talweg_steps.passes == 1:
            return base.apply_gradients(grads_and_vars, global_step, name)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        self._create_slots(variables)  # type: ignore[attr-defined]

        def apply(combined: list[Any]) -> Any:
            return base.apply_gradients(list(zip(combined, variables)), global_step, name)

        def skip() -> Any:
            return None if global_step is None else tf.group(global_step.assign_add(1))

        gradients = [gradient for gradient, _ in pairs]
        done = self._talweg_steps.step(gradients, variables, apply, skip)
        return getattr(done, "op", done)


def _is_of(optimizer: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    cls: Any = loaded
    for part in name.split("."):
        cls = getattr(cls, part, None)
    return isinstance(cls, type) and isinstance(optimizer, cls)


def _require_tensorflow_backend() -> None:
    backend = sys.modules["keras"].backend.backend()
    if backend != "tensorflow":
        raise Unsupported(
            f"Keras 3 runs on its backend '{backend}', and its optimizers are distributed on "
            "'tensorflow' alone: set KERAS_BACKEND=tensorflow, or use talweg.jax or talweg.torch in "
            "a training loop of your own"
        )


def _methods_for(optimizer: Any) -> type:
    if _is_of(optimizer, "keras", "optimizers.Optimizer"):
        _require_tensorflow_backend()
        _combine_before_scaling(sys.modules["keras"].optimizers.LossScaleOptimizer)
        return _Keras3Methods
    for name in ("optimizers.Optimizer", "optimizers.legacy.Optimizer"):
        if _is_of(optimizer, "tf_keras", name):
            return _TfKerasMethods
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _V1Methods
    raise InvalidArgument(
        f"{type(optimizer).__name__} is no optimizer of Keras 3, of tf-keras or of "
        "tf.compat.v1.train: pass one of these"
    )


def is_v1(optimizer: Any) -> bool:
    """Whether it is one of tf.compat.v1.train's."""
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def distribute(
    optimizer: OptimizerT,
    choices: Choices,
    passes: int = 1,
    averages_passes: bool = False,
) -> OptimizerT:
    """Makes `optimizer` combine its gradients over the ranks; returns the same object.

    It is of a subclass that has its class's name, so a saved model needs nothing of Talweg.
    """
    methods = _methods_for(optimizer)
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}; it must be at least 1")
    cls = type(optimizer)
    if not issubclass(cls, methods):
        # tf-keras looks for a class's public name in the class itself.
        members = {key: value for key, value in vars(cls).items() if key.startswith("_keras_api")}
        members |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        distributed = type(cls.__name__, (methods, cls), members)
        _give_name(distributed, cls)
        object.__setattr__(optimizer, "__class__", distributed)
    own: Any = optimizer
    object.__setattr__(own, "_talweg_steps", _Steps(choices, passes, averages_passes))
    return optimizer


def _give_name(distributed: type, cls: type) -> None:
    """Keras 3 saves a class under the name that it has registered; so the subclass has it too."""
    registry = sys.modules.get("keras.src.api_export")
    names = getattr(registry, "REGISTERED_OBJS_TO_NAMES", None)
    if isinstance(names, dict) and cls in names:
        names[distributed] = names[cls]
