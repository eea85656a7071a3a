# SPDX-License-Identifier: Apache-2.0
"""horovod.keras over Talweg: `import horovod.keras as hvd` runs unchanged. See docs/horovod.md."""

from __future__ import annotations

from typing import Any

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import keras
    import tensorflow as _tensorflow  # noqa: F401  # Keras may run on another backend.

from talweg.horovod.common import surface
from talweg.horovod.common.process_sets import ProcessSet, global_process_set
from talweg.horovod.common.surface import *  # noqa: F403
from talweg.horovod.keras import _impl, callbacks, elastic
from talweg.horovod.keras._impl import (
    allgather,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from talweg.horovod.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Sum,
)
from talweg.tensorflow._compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "global_process_set",
    "load_model",
    "reducescatter",
]
__all__ += surface.__all__


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """Makes an optimizer of Keras reduce its gradients over the ranks; returns the same object."""
    return _impl.distribute(
        optimizer,
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        1,
        False,
        num_groups,
        groups,
        global_process_set,
        True,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: Any = 1,
    average_aggregated_gradients: Any = False,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer reduce all gradients but those of `local_layers`; returns it.

    The parameters are those of Horovod's documentation. Horovod's code lacks the two after `op`.
    Arguments may be passed by position in either order.
    """
    has_groups_here = backward_passes_per_step is None or isinstance(backward_passes_per_step, list)
    if has_groups_here or isinstance(average_aggregated_gradients, ProcessSet):
        given_groups, given_set, given_layers, given_scale = (
            backward_passes_per_step,
            average_aggregated_gradients,
            groups,
            process_set,
        )
        backward_passes_per_step, average_aggregated_gradients = 1, False
        groups = given_groups
        # A ProcessSet here means that scale_local_gradients was left out, or that the set was
        # passed by its name.
        if not isinstance(given_scale, ProcessSet):
            process_set, scale_local_gradients = global_process_set, given_scale
        if isinstance(given_set, ProcessSet):
            process_set = given_set
        if given_layers is not None:
            local_layers = given_layers
    return _impl.distribute(
        optimizer,
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        backward_passes_per_step,
        average_aggregated_gradients,
        0,
        groups,
        process_set,
        scale_local_gradients,
        local_layers,
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Returns the reduction of a value over the ranks. With `op`, pass average=None."""
    if average is True and op is None:
        average = None  # The default must not warn that `average` is deprecated.
    return _impl.allreduce(value, name, average, prescale_factor, postscale_factor, op, compression)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model whose optimizer reduces its gradients. `legacy_opts` has no effect."""
    return _impl.load_model(keras, filepath, custom_optimizers, custom_objects, compression)
