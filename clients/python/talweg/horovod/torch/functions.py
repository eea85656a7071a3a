# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of parameters, optimizer state and objects with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import torch

import talweg.torch as tw
from talweg._compat.torch.state import pairs_of
from talweg.errors import Mismatch
from talweg.horovod.common.basics import internal
from talweg.horovod.common.process_sets import ProcessSet, global_process_set, members_of

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Makes every rank's parameters equal to the root's. `params` is a dict, or a list of tensors
    or (name, tensor) pairs.
    """
    pairs = pairs_of(params)
    internal(lambda: _broadcast_parameters(pairs, root_rank))


def _broadcast_parameters(pairs: Any, root_rank: int) -> None:
    """Raises Mismatch at every rank. talweg.torch raises it only at ranks unlike the root."""
    failure: Mismatch | None = None
    try:
        tw.broadcast_parameters(pairs, root_rank)
    except Mismatch as mismatch:
        failure = mismatch
    told = tw.all_gather_object("" if failure is None else str(failure), "horovod.parameters")
    if failure is None:
        failure = next((Mismatch(text) for text in told if text), None)
    if failure is not None:
        raise failure


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Makes every rank's optimizer state equal to the root's, without a step that creates it.

    If the optimizer had no state, its parameters get zeros as gradients, as with Horovod. Those
    that `model` says get sparse gradients do not. Raises ValueError for torch.optim.LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    if not optimizer.state:
        _give_zero_gradients(optimizer, model)
    internal(lambda: tw.broadcast_optimizer_state(optimizer, root_rank))


def _give_zero_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    if isinstance(optimizer, torch.optim.SparseAdam):
        return
    modules = [] if model is None else list(model.modules())
    sparse = {id(each.weight) for each in modules if getattr(each, "sparse", False)}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None and id(parameter) not in sparse:
                parameter.grad = torch.zeros_like(parameter)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object at every rank. Uses pickle: only for ranks you trust."""
    members = members_of(process_set, "broadcast_object")
    return internal(lambda: tw.broadcast_object(obj, root_rank, name, process_set=members))


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns all ranks' objects, by rank. Uses pickle: only for ranks you trust."""
    return internal(lambda: tw.all_gather_object(obj, name))
