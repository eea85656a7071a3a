# SPDX-License-Identifier: Apache-2.0
"""Values of graphs that tf-keras runs, if eager execution is off, as by tf.compat.v1.

tf-keras has one session for such a graph, which holds the values of all variables. What its users
see as numbers are tensors here, until that session computes them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def _tf_keras() -> Any:
    """Returns tf-keras if eager execution is off and tf-keras is in use; else None."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return None
    # Asking tf.keras for a class loads tf-keras, if tf.keras is that.
    if tf.keras.Model.__module__.startswith("tf_keras."):
        return tf.keras
    return sys.modules.get("tf_keras")


def _backend() -> Any:
    keras = _tf_keras()
    return None if keras is None else keras.backend


def evaluated(result: Any) -> Any:
    """Returns a tensor's value, or that of each in a list; runs an operation, and returns None.

    What TensorFlow has computed already is returned as it is, as is a tensor of tf.function.
    """
    backend = _backend()
    if backend is None:
        return result
    if isinstance(result, (list, tuple)):
        return [evaluated(each) for each in result]
    if isinstance(result, tf.Operation):
        with tf.control_dependencies([result]):
            done = tf.constant(0)
        backend.get_value(done)
        return None
    return backend.get_value(result)


def read(variables: Sequence[Any]) -> list[np.ndarray]:
    """Returns the variables' values."""
    backend = _backend()
    if backend is None:
        return [np.asarray(each.numpy()) for each in variables]
    return [np.asarray(each) for each in backend.batch_get_value(list(variables))]


def write(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Gives the variables values."""
    backend = _backend()
    if backend is not None:
        backend.batch_set_value(list(zip(variables, values)))
        return
    for variable, value in zip(variables, values):
        variable.assign(value)


def track(variables: Sequence[Any]) -> None:
    """Has Keras's session initialize these variables, as it does those of models."""
    keras = _tf_keras()
    if keras is not None:
        for variable in variables:
            keras.__internal__.backend.track_variable(variable)
