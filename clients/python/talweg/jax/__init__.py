# SPDX-License-Identifier: Apache-2.0
"""Talweg for JAX on CPUs: push_pull and the collectives, eagerly and inside of jit.

    import jax, optax
    import talweg.jax as tw

    tw.init()
    params = tw.broadcast_parameters(params)
    optimizer = tw.DistributedOptimizer(optax.adam(1e-3))

    @jax.jit
    def step(params, state, batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, tw.push_pull(loss, "loss")

Every rank is a process with one JAX device. docs/jax.md says which calls belong together.
"""

from __future__ import annotations

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import jax as _jax  # noqa: F401

from talweg import (
    Op,
    ProcessSet,
    TalwegError,
    barrier,
    broadcast_object,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from talweg.jax._calls import (
    all_gather,
    all_to_all,
    broadcast,
    broadcast_parameters,
    gather,
    push_pull,
    push_pull_async,
    reduce,
    reduce_scatter,
    scatter,
    synchronize,
)
from talweg.jax._errors import talweg_errors
from talweg.jax._optimizer import DistributedOptimizer

__all__ = [
    "DistributedOptimizer",
    "Op",
    "ProcessSet",
    "TalwegError",
    "all_gather",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "gather",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "push_pull",
    "push_pull_async",
    "rank",
    "reduce",
    "reduce_scatter",
    "scatter",
    "shutdown",
    "size",
    "synchronize",
    "talweg_errors",
]
