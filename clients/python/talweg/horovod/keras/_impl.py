# SPDX-License-Identifier: Apache-2.0
"""The common part of horovod.keras and horovod.tensorflow.keras."""

from __future__ import annotations

from typing import Any

from talweg import _client
from talweg._compat.tensorflow import keras as shared
from talweg._compat.tensorflow.failures import operation
from talweg.horovod.common import basics
from talweg.horovod.common.process_sets import ProcessSet, global_process_set
from talweg.horovod.tensorflow import gradients, mpi_ops
from talweg.horovod.tensorflow.gradients import choices_of, local_variables
from talweg.tensorflow import _graphs, _variables
from talweg.tensorflow._compression import Compression


def distribute(
    optimizer: Any,
    op: int,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    num_groups: int,
    groups: Any,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    local_layers: Any = None,
) -> Any:
    """Makes an optimizer of Keras reduce its gradients over the ranks; returns the same object."""
    if op not in (basics.Average, basics.Sum):
        raise ValueError("op currently only supports Average and Sum")
    choices = choices_of(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
        "DistributedOptimizer",
    )
    choices.add_local(local_variables(local_layers))
    return gradients.distribute(
        optimizer, choices, backward_passes_per_step, average_aggregated_gradients
    )


@operation
def allreduce(
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    op: int | None,
    compression: Any,
) -> Any:
    _client.current()  # Raises NotInitialized before any other error.
    wanted = basics.op_of(basics.resolve(op, average), None, "allreduce")
    return shared.reduce_value(
        value,
        None if name is None else f"keras.{name}",
        wanted,
        prescale_factor,
        postscale_factor,
        compression,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Returns the ranks' values joined along the first dimension."""
    return _graphs.evaluated(mpi_ops.allgather(value, name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the root's value at every rank."""
    return _graphs.evaluated(mpi_ops.broadcast(value, root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: int = basics.Average) -> Any:
    """Returns this rank's rows of the reduction, which are in rank order."""
    return _graphs.evaluated(mpi_ops.reducescatter(value, op=op, name=name))


@operation
def broadcast_global_variables(root_rank: int) -> Any:
    """Assigns the root's values to the graph's global variables.

    Without tf-keras it returns the operation that does so. Raises RuntimeError if TensorFlow
    executes eagerly.
    """
    variables = _variables.global_variables()
    basics.rank()
    return _graphs.evaluated(_variables.assign_from_root(variables, root_rank))


def load_model(
    keras: Any,
    filepath: Any,
    custom_optimizers: Any,
    custom_objects: Any,
    compression: Any = Compression.none,
) -> Any:
    def distributed(optimizer: Any) -> Any:
        return distribute(
            optimizer,
            basics.Average,
            compression,
            False,
            1.0,
            1,
            False,
            0,
            None,
            global_process_set,
            True,
        )

    return shared.load_model(keras, filepath, custom_optimizers, custom_objects, distributed)
