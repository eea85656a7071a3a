# SPDX-License-Identifier: Apache-2.0
"""Talweg's collectives by the other systems' rules: one call at a time may use a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import talweg.torch as tw
from talweg import Op, ProcessSet
from talweg._client import Handle, session
from talweg._client.session import Pending
from talweg._compat.torch.rounds import Round
from talweg.torch._collectives import COLLECTIVES


def _begin(
    name: str | None,
    process_set: ProcessSet | None,
    start: Callable[[], Handle],
    finish: Callable[[Any], Any] | None = None,
) -> Pending:
    if name is None:
        return Round(start(), finish)
    life = session.current()
    held = name if process_set is None else f"{name}{process_set.suffix}"
    life.hold(held)
    try:
        return Round(start(), finish, at_end=lambda: life.release(held))
    except Exception:
        life.release(held)
        raise


def all_gather(
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet | None,
    of_some: bool = False,
) -> Pending:
    """Starts an all_gather. With `of_some` it goes on without ranks that have joined."""
    gather = COLLECTIVES.all_gather_of_some_async if of_some else tw.all_gather_async
    return _begin(
        name,
        process_set,
        lambda: gather(tensor, name=name, process_set=process_set),
    )


def reduce_scatter(
    tensor: torch.Tensor,
    op: Op,
    name: str | None,
    process_set: ProcessSet | None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    finish: Callable[[Any], Any] | None = None,
) -> Pending:
    return _begin(
        name,
        process_set,
        lambda: tw.reduce_scatter_async(
            tensor,
            op=op,
            name=name,
            process_set=process_set,
            prescale_factor=prescale,
            postscale_factor=postscale,
        ),
        finish,
    )


def all_to_all(
    tensor: torch.Tensor,
    splits: list[int],
    name: str | None,
    process_set: ProcessSet | None,
    finish: Callable[[Any], Any],
) -> Pending:
    """Starts an all_to_all. `finish` gets (tensor, received_splits), and returns the result."""
    return _begin(
        name,
        process_set,
        lambda: tw.all_to_all_async(tensor, splits=splits, name=name, process_set=process_set),
        finish,
    )
