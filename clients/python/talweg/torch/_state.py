# SPDX-License-Identifier: Apache-2.0
"""Parameters and optimizer state, made equal on all ranks before training."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from talweg import _client, _objects
from talweg._client import Handle, Op
from talweg.torch._tensors import finish, start


def _tensor_name(name: str, tensor: torch.Tensor, root_rank: int) -> str:
    """Two models of one program may use a name twice, and a root may change: both are in the name."""
    return f"parameter.{name}.{tuple(tensor.shape)}.{tensor.dtype}.{root_rank}"


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]], root_rank: int = 0
) -> None:
    """Makes every rank's parameters the root's, byte for byte, in place.

    `params` is model.state_dict(), or model.named_parameters(). Entries that are no tensors (of a
    state_dict) are left alone.
    """
    client = _client.current()
    items = params.items() if isinstance(params, Mapping) else params
    tensors = [(name, value) for name, value in items if isinstance(value, torch.Tensor)]
    handles: dict[str, Handle] = {}
    for name, tensor in tensors:
        if tensor.numel() == 0:
            continue
        tensor_name = _tensor_name(name, tensor, root_rank)
        if tensor_name in handles:  # Several models in one call.
            finish(client, handles.pop(tensor_name))
        handles[tensor_name] = start(
            client, tensor, tensor, Op.BROADCAST, tensor_name, 0, root_rank
        )
    for handle in handles.values():
        finish(client, handle)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Makes every rank's optimizer state the root's: hyperparameters, step counts, moments."""
    client = _client.current()
    buffer = io.BytesIO()
    if client.rank == root_rank:
        torch.save(optimizer.state_dict(), buffer)
    name = f"optimizer_state.{root_rank}"
    data = _objects.broadcast_object(client, buffer.getvalue(), root_rank, name)
    if client.rank != root_rank:
        # Not onto the root's GPU, which is another rank's; the optimizer moves it to its own.
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        optimizer.load_state_dict(state)
