# SPDX-License-Identifier: Apache-2.0
"""Compiles whole steps with Talweg's calls by torch.compile, in programs of tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import talweg
import torch
from torch import nn

_STEPS = 3
Step = Callable[[torch.Tensor], torch.Tensor]


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step_over(
    model: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    before: Callable[[], object] | None = None,
    after: Callable[[], object] | None = None,
) -> Step:
    """Returns a step of `optimizer`. The program calls `before` and `after` around it."""

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if before is not None:
            before()
        optimizer.step()
        if after is not None:
            after()
        return loss

    return step


def _result(model: nn.Module, step: Step) -> list[torch.Tensor]:
    losses = []
    for number in range(_STEPS):
        generator = torch.Generator().manual_seed(_STEPS * number + talweg.rank())
        losses.append(step(torch.randn(4, 8, generator=generator)).detach().clone())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def check_compiled(make: Callable[[str], tuple[nn.Module, Step]], *named: str) -> None:
    """Checks that a compiled step does the same as the plain one, and that torch warns of nothing.

    `make` makes a model and a step over it. `named` are functions at which a graph ends, so that it
    does not go on within them.
    """
    wanted = _result(*make("plain"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, step = make("compiled")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got = _result(model, torch.compile(step, backend="eager"))
    assert all(torch.equal(one, other) for one, other in zip(got, wanted)), (got, wanted)
    texts = [str(each.message) for each in told if issubclass(each.category, UserWarning)]
    assert not texts, texts
    breaks = "\n".join(torch._dynamo.utils.counters["graph_break"])
    for name in named:
        assert f"Skip inlining function <function {name} at" in breaks, (name, breaks)
