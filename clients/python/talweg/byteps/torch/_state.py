# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of parameters, optimizer state and objects by BytePS's signatures."""

from __future__ import annotations

from typing import Any

import torch

import talweg.torch as tw
from talweg._compat.torch.state import pairs_of


def broadcast_parameters(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """Makes every rank's parameters the root's: a dict, or a list of (name, tensor) pairs."""
    tw.broadcast_parameters(pairs_of(params, prefix), root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter."
) -> None:
    """Makes every rank's optimizer state the root's."""
    tw.broadcast_optimizer_state(optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the root's object on every rank. Objects are pickled: only for ranks you trust."""
    return tw.broadcast_object(obj, root_rank, name)
