# SPDX-License-Identifier: Apache-2.0
"""Talweg's collectives by the other systems' rules: one call at a time may use a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import talweg.torch as tw
from talweg import Op, ProcessSet, _client
from talweg._client import Handle, session
from talweg._client.session import Pending
from talweg._collectives import adasum as adasum_calls
from talweg._collectives.process_sets import Group
from talweg._compat.torch.rounds import Round
from talweg.torch import _tensors

_WIDE = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


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


def all_gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet | None) -> Pending:
    return _begin(
        name,
        process_set,
        lambda: tw.all_gather_async(tensor, name=name, process_set=process_set),
    )


def sparse_sum(
    tensor: torch.Tensor,
    op: Op,
    name: str | None,
    process_set: ProcessSet | None,
    finish: Callable[[torch.Tensor], torch.Tensor],
) -> Pending:
    """Starts a sum, or an average, of COO tensors. It goes on without ranks that have joined."""
    return _begin(
        name,
        process_set,
        lambda: tw.push_pull_sparse_async(tensor, name, op, process_set=process_set),
        finish,
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


def adasum(
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet | None,
    operation: str,
    prescale: float = 1.0,
    postscale: float = 1.0,
    lengths: Sequence[int] | None = None,
    out: torch.Tensor | None = None,
) -> Pending:
    """Starts the Adasum of a floating-point tensor. The result is `out`, or a new tensor.

    Tensors of 16 bits are combined in f32. `lengths`: see talweg._collectives.adasum.start().
    """
    client = _client.current()
    group = Group(client, process_set, operation)
    wide = _WIDE[adasum_calls.dtype_for(_tensors.wire_dtype(tensor), operation)]
    own = torch.empty(tensor.numel(), dtype=wide, device="cpu")
    own.view(tensor.shape).copy_(tensor.detach())
    if prescale != 1.0:
        own *= prescale

    def start() -> Handle:
        return adasum_calls.start(client, name, group, own.numpy(), tensor.shape, lengths)

    def finish(array: Any) -> torch.Tensor:
        result = torch.from_numpy(array).view(tensor.shape)
        if postscale != 1.0:
            result *= postscale
        if out is None:
            return result.to(tensor)
        with torch.no_grad():
            return out.copy_(result)

    return _begin(name, process_set, start, finish)
