# SPDX-License-Identifier: Apache-2.0
"""Makes optimizers of Keras 3, tf-keras and tf.compat.v1 combine their gradients over the ranks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from talweg import _client
from talweg._arguments import passes_of
from talweg._client import Client
from talweg.errors import InvalidArgument, Unsupported
from talweg.tensorflow import _gradients, _graphs
from talweg.tensorflow._gradients import Choices
from talweg.tensorflow._ops import plain

OptimizerT = TypeVar("OptimizerT")


class Steps:
    """What an optimizer does with gradients before it applies them, and its sums of passes.

    `name` is what the names of its gradients begin with.
    """

    def __init__(
        self, choices: Choices, passes: int, averages_passes: bool, name: str = "gradient"
    ) -> None:
        self.choices = choices
        self.name = name
        self.passes = passes
        self._averages_passes = averages_passes
        self._sums: list[Any] = []
        self._count: Any = None
        self._is_in_graph = False  # In a graph of tf.compat.v1 a session holds the values.
        # Set when the optimizer's own methods compute gradients. They are combined from then on.
        self._combines_when_computed = False
        self._minimizing = 0
        # Set while a LossScaleOptimizer around this one applies gradients that are combined.
        self.are_combined = False
        _client.call_when_replaced(self._begin_anew)

    @property
    def counter(self) -> tf.Tensor:
        """How many passes the current step has had."""
        return tf.zeros((), tf.int64) if self._count is None else self._count % self.passes

    @contextlib.contextmanager
    def minimizing(self) -> Iterator[None]:
        """Says that gradients are applied right after they are computed: step() combines them."""
        self._minimizing += 1
        try:
            yield
        finally:
            self._minimizing -= 1

    @contextlib.contextmanager
    def combined(self) -> Iterator[None]:
        """Says that gradients applied in this context are combined already."""
        before, self.are_combined = self.are_combined, True
        try:
            yield
        finally:
            self.are_combined = before

    def computed(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Combines what the optimizer's own methods have computed, unless step() will do so."""
        if self._minimizing or self.passes > 1:
            return list(gradients)
        self._combines_when_computed = True
        return self.combine(gradients, variables)

    def combine(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the ranks' gradients combined."""
        return _gradients.combine(gradients, variables, self.choices, self.name)

    def apply(
        self, apply: Callable[[list[Any]], Any], gradients: list[Any], variables: Sequence[Any]
    ) -> Any:
        """Calls `apply` with what combine() has returned."""
        return apply(gradients)

    def flush(self) -> None:
        """Makes variables equal at all ranks, if steps are asynchronous."""

    def _begin_anew(self, _: Client) -> None:
        """Starts the step again with its first pass. The job is another, or the agent was lost."""
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
        _graphs.track([self._count, *(each for each in self._sums if each is not None)])

    def step(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        apply: Callable[[list[Any]], Any],
        skip: Callable[[], Any],
    ) -> Any:
        """Calls `apply` with the combined gradients in a step's last pass, and `skip` in others."""
        if self.passes == 1 and self._combines_when_computed and not self._minimizing:
            return self.apply(apply, list(gradients), variables)
        if self.passes == 1:
            return self.apply(apply, self.combine(gradients, variables), variables)
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
            combined = self.combine(totals, variables)
            with tf.control_dependencies([each for each in combined if each is not None]):
                cleared = [
                    total.assign(tf.zeros_like(total)) for total in self._sums if total is not None
                ]
            with tf.control_dependencies(cleared):
                return _after(self.apply(apply, combined, variables), True)

        def other() -> Any:
            return _after(skip(), False)

        if tf.executing_eagerly():
            return last() if int(count) % self.passes == 0 else other()
        return tf.cond(tf.equal(count % self.passes, 0), last, other)


def _after(done: Any, value: bool) -> tf.Tensor:
    """Returns the value after `done`. A graph of tf.compat.v1 drops what nothing depends on.

    There an assignment returns a variable, and `op` is the operation that assigns.
    """
    known = (tf.Tensor, tf.Operation)
    operation = done if isinstance(done, known) else getattr(done, "op", None)
    with tf.control_dependencies([operation] if isinstance(operation, known) else []):
        return tf.identity(tf.constant(value))


class _Methods:
    """The methods that every optimizer gets."""

    _talweg_steps: Steps

    def register_local_var(self, var: Any) -> None:
        """Keeps this variable's gradients at this rank: they are not combined."""
        self._talweg_steps.choices.add_local([var])

    def flush(self) -> None:
        """Makes the variables equal at all ranks after asynchronous steps. Else does nothing."""
        self._talweg_steps.flush()


class _Keras3Methods(_Methods):
    """The methods that an optimizer of Keras 3 gets."""

    @plain
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Applies the ranks' gradients, combined."""
        base: Any = super()
        return _apply_combined(self, self._talweg_steps, base.apply, grads, trainable_variables)


def _apply_combined(
    own: Any, steps: Steps, apply: Callable[..., Any], grads: Any, trainable_variables: Any
) -> Any:
    """Calls `apply`, of an optimizer of Keras 3, with the ranks' gradients combined."""
    if steps.are_combined:
        return apply(grads, trainable_variables)
    variables = own._trainable_variables if trainable_variables is None else trainable_variables
    variables = list(variables)
    if steps.passes > 1 and not own.built:
        with tf.init_scope():  # Variables cannot be made within a branch of tf.cond.
            own.build(variables)
            own.built = True

    def apply_all(combined: list[Any]) -> None:
        apply(combined, trainable_variables)

    return steps.step(list(grads), variables, apply_all, lambda: own.iterations.assign_add(1))


def _combine_before_scaling(scaling: Any) -> None:
    """Makes Keras 3's LossScaleOptimizer combine gradients before it checks them.

    It skips a step whose gradients are not finite. All ranks must check the same gradients, also
    if the optimizer inside it is the one that combines. With mixed_float16, Model.compile() puts
    one around any optimizer.
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

        if isinstance(self, _Keras3Methods):  # It is distributed too, and has combined them.
            return apply_scaled(grads, trainable_variables)
        return _apply_combined(self, steps, apply_scaled, grads, trainable_variables)

    scaling.apply = apply


class _TfKerasMethods(_Methods):
    """The methods that an optimizer of tf-keras gets, legacy ones included."""

    def minimize(self, *arguments: Any, **keywords: Any) -> Any:
        """Minimizes as Keras does, with the ranks' gradients combined."""
        with self._talweg_steps.minimizing():
            return super().minimize(*arguments, **keywords)  # type: ignore[misc]

    @plain
    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Returns (gradient, variable) pairs, combined. apply_gradients() takes them as they are.

        So a check of the gradients, such as a LossScaleOptimizer's, ends alike at all ranks.
        """
        return self._compute_gradients(loss, var_list, None, tape)

    @plain
    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Any:
        base: Any = super()
        if hasattr(base, "_compute_gradients"):  # A legacy optimizer.
            pairs = base._compute_gradients(loss, var_list, grad_loss, tape=tape)
        else:
            pairs = base.compute_gradients(loss, var_list, tape)
        variables = [variable for _, variable in pairs]
        gradients = self._talweg_steps.computed([gradient for gradient, _ in pairs], variables)
        return list(zip(gradients, variables))

    @plain
    def get_gradients(self, loss: Any, params: Any) -> Any:
        """Returns the ranks' gradients combined. Only legacy optimizers have this method."""
        gradients = super().get_gradients(loss, params)  # type: ignore[misc]
        return self._talweg_steps.computed(gradients, params)

    @plain
    def apply_gradients(
        self, grads_and_vars: Any, name: str | None = None, *arguments: Any, **keywords: Any
    ) -> Any:
        """Applies the ranks' gradients, combined."""
        own: Any = self
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        base: Any = super()
        if self._talweg_steps.passes > 1 and hasattr(own, "build"):
            with tf.init_scope():  # Variables cannot be made within a branch of tf.cond.
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
    """The methods that an optimizer of tf.compat.v1.train gets."""

    @plain
    def compute_gradients(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns (gradient, variable) pairs, combined unless a step has several passes."""
        base: Any = super()
        pairs = base.compute_gradients(*arguments, **keywords)
        if self._talweg_steps.passes > 1:  # Then apply_gradients() combines their sum.
            return pairs
        variables = [variable for _, variable in pairs]
        gradients = [gradient for gradient, _ in pairs]
        return list(zip(self._talweg_steps.combine(gradients, variables), variables))

    @plain
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Applies gradients. If a step has several passes, it first combines the passes' sum."""
        base: Any = super()
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        gradients = [gradient for gradient, _ in pairs]

        def apply(combined: list[Any]) -> Any:
            return base.apply_gradients(list(zip(combined, variables)), global_step, name)

        if self._talweg_steps.passes == 1:
            return self._talweg_steps.apply(apply, gradients, variables)
        self._create_slots(variables)  # type: ignore[attr-defined]

        def skip() -> Any:
            return None if global_step is None else tf.group(global_step.assign_add(1))

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
        f"{type(optimizer).__name__} is not an optimizer of Keras 3, of tf-keras or of "
        "tf.compat.v1.train: pass one of these"
    )


def is_v1(optimizer: Any) -> bool:
    """Whether the optimizer is one of tf.compat.v1.train."""
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def distribute(
    optimizer: OptimizerT,
    choices: Choices,
    passes: int = 1,
    averages_passes: bool = False,
    name: str = "gradient",
) -> OptimizerT:
    """Makes `optimizer` combine its gradients over the ranks; returns the same object."""
    return distribute_by(optimizer, lambda: Steps(choices, passes, averages_passes, name), passes)


def name_of(optimizer: Any) -> str | None:
    """Returns the name that distribute() has given the optimizer; None if it has not."""
    steps = getattr(optimizer, "_talweg_steps", None)
    return steps.name if isinstance(steps, Steps) else None


def distribute_by(
    optimizer: OptimizerT, make_steps: Callable[[], Steps], passes: int = 1
) -> OptimizerT:
    """Makes `optimizer` make its steps by `make_steps()`; returns the same object.

    The object gets a subclass with its class's name, so a saved model needs nothing of Talweg.
    """
    methods = _methods_for(optimizer)
    passes_of(passes)
    cls = type(optimizer)
    if not issubclass(cls, methods):
        # tf-keras looks up a class's public name in the class itself, not in its bases.
        members = {key: value for key, value in vars(cls).items() if key.startswith("_keras_api")}
        members |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        distributed = type(cls.__name__, (methods, cls), members)
        _give_name(distributed, cls)
        object.__setattr__(optimizer, "__class__", distributed)
    own: Any = optimizer
    object.__setattr__(own, "_talweg_steps", make_steps())
    return optimizer


def _give_name(distributed: type, cls: type) -> None:
    """Registers the subclass under its class's name. Keras 3 saves classes by these names."""
    registry = sys.modules.get("keras.src.api_export")
    names = getattr(registry, "REGISTERED_OBJS_TO_NAMES", None)
    if isinstance(names, dict) and cls in names:
        names[distributed] = names[cls]
