# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer and DistributedGradientTape with Horovod's signatures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from talweg._arguments import passes_of
from talweg._call_site import warn
from talweg._compat.tensorflow import names
from talweg._compat.tensorflow.failures import guard
from talweg._declaration import Op
from talweg.horovod.common import basics
from talweg.horovod.common.basics import Adasum, Average
from talweg.horovod.common.process_sets import (
    ProcessSet,
    global_process_set,
    members_of,
    require_set,
)
from talweg.tensorflow import _gradients, _optimizer, _tape
from talweg.tensorflow._compression import Compression
from talweg.tensorflow._gradients import Choices

__all__ = [
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "choices_of",
]


def choices_of(
    op: int,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    num_groups: int,
    groups: Any,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    operation: str,
) -> Choices:
    """Returns what Horovod's arguments choose; raises ValueError if Horovod refuses one of them."""
    basics.rank()
    _gradients.check_groups(num_groups, groups)
    if num_groups:
        warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning)
    is_adasum = basics.is_adasum(op)
    rule = Op.SUM if is_adasum else basics.op_of(op, None, operation)
    wanted, before, after = _gradients.predivided(rule, gradient_predivide_factor)
    require_set(process_set, operation)
    included = process_set.included() is not False
    members = members_of(process_set, operation) if included else None
    return Choices(
        wanted,
        compression,
        before,
        after,
        sparse_as_dense,
        members,
        scale_local=scale_local_gradients,
        takes_part=lambda: process_set.included() is not False,
        own_at_entry=True,
        is_adasum=is_adasum,
        guard=guard,
    )


def distribute(optimizer: Any, choices: Choices, passes: int, averages_passes: bool) -> Any:
    """Makes `optimizer` reduce its gradients; returns the same object."""
    name = names.of_optimizer(optimizer, choices)
    _optimizer.distribute(optimizer, choices, passes, averages_passes, name)
    # Programs that know Horovod's own code read these attributes.
    steps = optimizer._talweg_steps
    object.__setattr__(optimizer, "_agg_helper", steps if passes > 1 else None)
    if _optimizer.is_v1(optimizer):
        optimizer._optimizer = optimizer
    return optimizer


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes `optimizer` reduce its gradients over the ranks; returns the same object.

    `optimizer` is one of tf.compat.v1.train, of Keras 3 or of tf-keras. `name`, `use_locking`, the
    devices and the groups have no effect. See talweg.tensorflow.DistributedOptimizer().
    """
    if op == Adasum:
        if not _optimizer.is_v1(optimizer):
            raise ValueError("op == Adasum is not supported yet with Keras")
        raise NotImplementedError(
            "op=hvd.Adasum is not offered for optimizers of tf.compat.v1: use "
            "hvd.DistributedGradientTape(op=hvd.Adasum)"
        )
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
    passes = passes_of(backward_passes_per_step)
    if _optimizer.is_v1(optimizer) and passes > 1 and tf.executing_eagerly():
        raise ValueError(
            "backward_passes_per_step > 1 is not supported yet for legacy optimizers when "
            "executing eagerly: use an optimizer of Keras"
        )
    return distribute(optimizer, choices, passes, average_aggregated_gradients)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes `gradtape` reduce what gradient() returns over the ranks; returns the same object."""
    choices = choices_of(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
        "DistributedGradientTape",
    )
    return _tape.distribute_tape(gradtape, choices)


def local_variables(local_layers: Any) -> list[Any]:
    """Returns the trainable weights of a layer or of several layers."""
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, Iterable) else [local_layers]
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [weight for layer in layers for weight in layer.trainable_weights]


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes `gradtape` reduce all gradients but those of `local_layers`; returns the tape."""
    local = local_variables(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in local:
        tape.register_local_source(variable)
    return tape
