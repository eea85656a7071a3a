# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of parameters, optimizer state and objects by Horovod's signatures."""

from __future__ import annotations

from typing import Any

import torch

import talweg.torch as tw
from talweg._compat.torch.state import pairs_of
from talweg.horovod.common.basics import internal
from talweg.horovod.common.process_sets import ProcessSet, global_process_set, members_of

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Makes every rank's parameters the root's; a dict, or a list of tensors or (name, tensor) pairs."""
    pairs = pairs_of(params)
    internal(lambda: tw.broadcast_parameters(pairs, root_rank))


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Makes every rank's optimizer state the root's. `model` has no effect: no step is made for it."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    internal(lambda: tw.broadcast_optimizer_state(optimizer, root_rank))


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank. Objects are pickled: only for ranks you trust."""
    members = members_of(process_set, "broadcast_object")
    return internal(lambda: tw.broadcast_object(obj, root_rank, name, process_set=members))


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns all ranks' objects, by rank. Objects are pickled: only for ranks you trust."""
    return internal(lambda: tw.all_gather_object(obj, name))
