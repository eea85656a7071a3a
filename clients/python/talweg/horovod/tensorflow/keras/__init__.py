# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow.keras over Talweg: `import horovod.tensorflow.keras as hvd` runs unchanged.

See docs/horovod.md.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from talweg.horovod.common import surface
from talweg.horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from talweg.horovod.common.surface import *  # noqa: F403
from talweg.horovod.keras import _impl
from talweg.horovod.keras._impl import (
    allgather,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from talweg.horovod.tensorflow.keras import callbacks, elastic
from talweg.horovod.tensorflow.mpi_ops import (
    Average,
    Sum,
)
from talweg.tensorflow._compression import Compression

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "global_process_set",
    "load_model",
    "reducescatter",
    "remove_process_set",
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
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer of Keras reduce its gradients over the ranks; returns the same object."""
    return _impl.distribute(
        optimizer,
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
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
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer reduce all gradients but those of `local_layers`; returns it."""
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
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Returns the reduction of a value over the ranks."""
    return _impl.allreduce(value, name, average, prescale_factor, postscale_factor, op, compression)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model whose optimizer reduces its gradients. `legacy_opts` has no effect."""
    return _impl.load_model(tf.keras, filepath, custom_optimizers, custom_objects, compression)
