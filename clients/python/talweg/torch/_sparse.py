# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors as rows that ranks can gather: indices of shape (n, sparse dimensions), and values."""

from __future__ import annotations

import torch


def rows_of(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices and the values of a COO tensor, each index once."""
    own = tensor.coalesce()
    return own.indices().transpose(0, 1).contiguous(), own.values()


def of_rows(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The COO tensor of `shape`; values of one index add up."""
    return torch.sparse_coo_tensor(indices.transpose(0, 1), values, shape, check_invariants=False)
