# SPDX-License-Identifier: Apache-2.0
"""The calls that byteps.keras and byteps.tensorflow.keras share."""

from __future__ import annotations

from typing import Any

from talweg import _client
from talweg._compat.tensorflow import keras as shared
from talweg._compat.tensorflow.failures import operation
from talweg._declaration import Op
from talweg.byteps import _asynchrony
from talweg.byteps.tensorflow import gradients, ops
from talweg.tensorflow import _graphs, _variables
from talweg.tensorflow._compression import Compression


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
) -> Any:
    """Makes an optimizer of Keras average its gradients over all ranks; returns the same object.

    With BYTEPS_ENABLE_ASYNC=1 it makes steps that wait for no other rank.
    """
    if _asynchrony.is_asked_for():
        return gradients.asynchronous(optimizer, compression)
    return gradients.synchronous(optimizer, Op.AVERAGE, compression, sparse_as_dense)


@operation
def push_pull(value: Any, name: str | None = None, average: bool = True) -> Any:
    """Returns the average, or the sum, of a number, an array, a tensor, or of each in a list."""
    _client.current()
    own = None if name is None else f"byteps.keras.{name}"
    return shared.reduce_value(value, own, Op.AVERAGE if average else Op.SUM)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the root's value on every rank."""
    return _graphs.evaluated(ops.broadcast(value, root_rank, name=name))


@operation
def broadcast_global_variables(root_rank: int) -> Any:
    """Makes the graph's global variables the root's.

    Without tf-keras it returns the operation that does so. Raises RuntimeError in eager mode.
    """
    spread = _variables.assign_from_root(_variables.global_variables(), root_rank)
    return _graphs.evaluated(spread)


def load_model(
    keras: Any, filepath: Any, custom_optimizers: Any, custom_objects: Any, compression: Any
) -> Any:
    return shared.load_model(
        keras,
        filepath,
        custom_optimizers,
        custom_objects,
        lambda optimizer: DistributedOptimizer(optimizer, compression=compression),
    )
