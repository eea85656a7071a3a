# SPDX-License-Identifier: Apache-2.0
"""An optimizer and a comparison, for programs that train over Gloo and over Talweg."""

from __future__ import annotations

import torch
from torch import nn


def sgd_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]
