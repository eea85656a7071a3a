# SPDX-License-Identifier: Apache-2.0
"""Small models and optimizers, and a check that all ranks have equal weights, for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import talweg.torch as tw
import torch
from torch import nn


def distributed(
    model: nn.Module,
    name: str,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **keywords: Any,
) -> torch.optim.Optimizer:
    optimizer = make(model.parameters(), lr=0.1)
    tw.broadcast_parameters(model.state_dict())
    return tw.DistributedOptimizer(optimizer, model.named_parameters(), name=name, **keywords)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))


def same_everywhere(model: nn.Module, what: object) -> None:
    own = [p.detach().float().numpy().tobytes() for p in model.parameters()]
    everyone = tw.all_gather_object(own)
    assert all(other == everyone[0] for other in everyone), f"ranks differ: {what}"


def step_on_own_data(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Makes one step on data that differs from rank to rank."""
    torch.manual_seed(100 * step + tw.rank())
    optimizer.zero_grad()
    dtype = next(model.parameters()).dtype
    model(torch.randn(4, 6, dtype=dtype)).square().mean().backward()
    optimizer.step()
    same_everywhere(model, f"step {step}")


def local_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int, width: int = 6
) -> None:
    """Makes a step of local steps, which may differ between ranks, on data of the rank and the step."""
    generator = torch.Generator().manual_seed(100 * step + tw.rank())
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(4, width, generator=generator)
    optimizer.zero_grad()
    model(inputs.to(dtype)).float().square().mean().backward()
    optimizer.step()


def bits_of(model: nn.Module) -> list[bytes]:
    return [p.detach().view(torch.uint8).numpy().tobytes() for p in model.parameters()]


def sgd_of(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)
