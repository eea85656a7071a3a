# SPDX-License-Identifier: Apache-2.0
"""Makes variables equal at all ranks: eagerly, in graphs, and by a hook of a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from talweg import _client
from talweg._collectives.process_sets import ProcessSet
from talweg._library.native_arguments import whole
from talweg.errors import WrongType
from talweg.tensorflow import _ops


def tf_variable(variable: Any) -> Any:
    """Returns the tf.Variable inside a variable of Keras 3; any other variable itself."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def assign_from_root(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet | None = None,
    base: str = "broadcast_variables",
) -> Any:
    """Assigns the root's values to the variables. A tf.compat.v1 graph gets the operation back."""
    targets = [tf_variable(each) for each in variables]
    for index, target in enumerate(targets):
        if not hasattr(target, "assign"):
            raise WrongType(
                f"{base}: expected variables, got {type(target).__name__} in place {index}: pass "
                "variables of TensorFlow or Keras, or call broadcast(), which returns a tensor"
            )
    if not targets:
        return None if tf.executing_eagerly() else tf.no_op()
    # Strings and other types without numbers stay as they are.
    targets = [
        each for each in targets if each.dtype.is_numpy_compatible and each.dtype != tf.string
    ]
    names = _ops.group_names("", targets, base)
    if tf.executing_eagerly():
        names = [f"{base}.{index}" for index in range(len(targets))]
    values = [_value(each) for each in targets]
    spread = _ops.broadcast_tensors(values, names, root_rank, process_set)
    assigned = [target.assign(value) for target, value in zip(targets, spread)]
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return None  # tf.function carries out assignments by itself.
    return tf.group(*(each.op for each in assigned))


def _value(variable: Any) -> tf.Tensor:
    read = getattr(variable, "read_value", None)
    return tf.convert_to_tensor(variable) if read is None else read()


@_ops.plain
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int = 0,
    process_set: ProcessSet | None = None,
) -> Any:
    """Makes every rank's variables equal to the root's, in place.

    `variables` are of TensorFlow or Keras, in the same order at every rank. In a graph of
    tf.compat.v1 it returns the operation that assigns them, else None. Raises Mismatch if a
    variable's shape or dtype differs between ranks.
    """
    _client.current()
    return assign_from_root(variables, root_rank, process_set)


def global_variables() -> list[Any]:
    """Returns those of the current graph. Raises RuntimeError if TensorFlow executes eagerly."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() does not support eager execution. Please use "
            "broadcast_variables(<model/optimizer variables>) instead."
        )
    return list(tf.compat.v1.global_variables())


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Makes all global variables equal to the root's after a session is made or restored."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`device` is the operations' device; "" leaves it to TensorFlow."""
        super().__init__()
        self.root_rank = whole("root_rank", root_rank)
        self.device = device
        self._operation: Any = None

    def begin(self) -> None:
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self._operation = assign_from_root(global_variables(), self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._operation)
