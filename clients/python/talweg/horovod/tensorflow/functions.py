# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of variables and objects with Horovod's signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from talweg._compat.tensorflow.failures import operation
from talweg.errors import NotInitialized
from talweg.horovod.common import basics
from talweg.horovod.common.process_sets import ProcessSet, global_process_set, members_of
from talweg.tensorflow import _ops, _variables

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

BroadcastGlobalVariablesHook = _variables.BroadcastGlobalVariablesHook


def _ready() -> None:
    if not basics.is_initialized():
        raise NotInitialized("Horovod has not been initialized; use hvd.init().")


@operation
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Makes every rank's variables equal to the root's, always in place.

    In a graph it returns the operation that does so. `inplace` has no effect.
    """
    _ready()
    members = members_of(process_set, "broadcast_variables")
    return _variables.assign_from_root(variables, root_rank, members)


@operation
def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that assigns the root's values to the graph's global variables.

    Raises RuntimeError if TensorFlow executes eagerly.
    """
    variables = _variables.global_variables()
    _ready()
    return _variables.assign_from_root(variables, root_rank)


@operation
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object at every rank; blocks. Uses pickle: only for ranks you trust."""
    _ready()
    members = members_of(process_set, "broadcast_object")
    return _ops.broadcast_object(obj, root_rank, name, members)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function of an object that calls broadcast_object() with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


@operation
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns all ranks' objects, by rank; blocks. Uses pickle: only for ranks you trust."""
    _ready()
    return _ops.all_gather_object(obj, name, members_of(process_set, "allgather_object"))
