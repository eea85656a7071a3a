# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic of TensorFlow: run, TensorFlowState and TensorFlowKerasState: docs/horovod.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from talweg.errors import Mismatch
from talweg.horovod.common import elastic as _elastic
from talweg.horovod.common.elastic import ObjectState
from talweg.tensorflow import _graphs
from talweg.tensorflow._keras import optimizer_variables
from talweg.tensorflow._variables import tf_variable

__all__ = ["ObjectState", "TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function that calls `func(state, ...)` again after each change, until it returns."""
    return _elastic.run_fn(func, aborted=tf.errors.AbortedError)


class _Variables(list[Any]):
    """Variables that are one value of a state, and the session that holds their values."""

    def __init__(self, variables: Iterable[Any], session: Any) -> None:
        super().__init__(variables)
        self.session = session


def _variables_of(value: Any) -> _Variables | None:
    """Returns the variables of a model, an optimizer or a list of variables; None for others."""
    if isinstance(value, _Variables):
        return value
    if hasattr(value, "trainable_weights"):
        return _Variables(value.weights, None)
    if hasattr(value, "apply_gradients") or isinstance(value, tf.compat.v1.train.Optimizer):
        return _Variables(optimizer_variables(value), None)
    return None


def _read(variables: _Variables) -> list[np.ndarray]:
    targets = [tf_variable(each) for each in variables]
    if variables.session is not None:
        return list(variables.session.run(targets))
    return _graphs.read(targets)


def _write(variables: _Variables, arrays: list[np.ndarray]) -> None:
    targets = [tf_variable(each) for each in variables]
    if variables.session is None:
        _graphs.write(targets, arrays)
        return
    for target, array in zip(targets, arrays):
        target.load(array, variables.session)


class _Shared(_elastic.Shared):
    """Values that may be models, optimizers and variables."""

    def _captured(self, value: Any) -> Any:
        variables = _variables_of(value)
        return super()._captured(value) if variables is None else _read(variables)

    def _load(self, name: str, value: Any) -> None:
        variables = _variables_of(self._values[name])
        if variables is None:
            super()._load(name, value)
            return
        self._check_shapes(name, variables, value)
        _write(variables, value)

    @staticmethod
    def _check_shapes(name: str, variables: _Variables, arrays: list[np.ndarray]) -> None:
        here = [tuple(each.shape) for each in variables]
        there = [array.shape for array in arrays]
        if here == there:
            return
        if len(here) != len(there):
            what = f"has {len(here)} variables at this rank, and {len(there)} in the job"
        else:
            place = next(place for place, shape in enumerate(here) if shape != there[place])
            what = (
                f"has variable {place} of shape {here[place]} at this rank, and {there[place]} in "
                "the job"
            )
        raise Mismatch(f"elastic state: '{name}' {what}: start the same program at every rank")

    def _add_all_to_digest(self, total: Any) -> None:
        """Adds variables that are trained. Others, as BatchNorm's averages, may differ by rank."""
        for name in sorted(self._values):
            variables = _variables_of(self._values[name])
            if variables is None:
                continue
            trained = [each for each in variables if getattr(each, "trainable", True)]
            for array in _read(_Variables(trained, variables.session)):
                self._add_to_digest(total, np.asarray(array))


class _State(_elastic.State):
    _kind = _Shared


class TensorFlowState(_State):
    """The State of variables, by default all global ones of a graph, and other values.

    In a graph of tf.compat.v1 they are read and written in `session`, by default the current one.
    Raises ValueError if the variables or the session are not known.
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        if tf.executing_eagerly():
            if variables is None:
                raise ValueError(
                    "TensorFlowState(): pass `variables`, as TensorFlow executes eagerly and has "
                    "no global ones"
                )
        else:
            variables = tf.compat.v1.global_variables() if variables is None else variables
            session = session or tf.compat.v1.get_default_session()
            if session is None:
                raise ValueError("TensorFlowState(): pass `session`, or call it within one")
        super().__init__(variables=_Variables(variables, session), **kwargs)


class TensorFlowKerasState(_State):
    """The State of a built model of Keras, its optimizer, and other values."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        """`backend` has no effect. Raises ValueError if the model is not built."""
        if not getattr(model, "built", False):
            raise ValueError(
                "TensorFlowKerasState(): the model has no variables yet: call its build(), or have "
                "it compute something, before"
            )
        optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if optimizer is not None:
            _build(optimizer, model.trainable_weights)
            kwargs["optimizer"] = optimizer
        super().__init__(model=model, **kwargs)


def _build(optimizer: Any, trained: list[Any]) -> None:
    """Makes the optimizer's variables. A joiner's has taken no step, and has none yet."""
    if getattr(optimizer, "built", False):
        return
    for name in ("build", "_create_all_weights"):  # tf-keras's legacy optimizers have the second.
        build = getattr(optimizer, name, None)
        if build is not None:
            build(trained)
            return
