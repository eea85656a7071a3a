# SPDX-License-Identifier: Apache-2.0
"""Reads the arguments of the other systems' broadcast_parameters()."""

from __future__ import annotations

from typing import Any

import torch


def pairs_of(params: Any, prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    """Returns (name, tensor) of each tensor in `params`, sorted by name if it is a dict.

    A list holds tensors or (name, tensor) pairs. Raises ValueError for other types.
    """
    if isinstance(params, dict):
        items = sorted(params.items())
    elif isinstance(params, list):
        items = [
            pair if isinstance(pair, tuple) else (str(place), pair)
            for place, pair in enumerate(params)
        ]
    else:
        raise ValueError(
            f"invalid params of type {type(params).__name__}: pass model.state_dict(), a dict, or a "
            "list, as in list(model.named_parameters())"
        )
    return [
        (f"{prefix}{name}", getattr(value, "data", value))
        for name, value in items
        if isinstance(value, torch.Tensor)
    ]
