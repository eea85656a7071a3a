# SPDX-License-Identifier: Apache-2.0
"""Turns sparse tensors into rows that ranks can gather, and back.

The rows are indices of shape (n, sparse dimensions), and values.
"""

from __future__ import annotations

import torch


def rows_of(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the indices and the values of a COO tensor. Each index occurs once."""
    own = tensor.coalesce()
    return own.indices().transpose(0, 1).contiguous(), own.values()


def of_rows(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Returns the COO tensor of `shape`. Values with the same index add up."""
    return torch.sparse_coo_tensor(
        indices.transpose(0, 1), values, shape, device=values.device, check_invariants=False
    )
