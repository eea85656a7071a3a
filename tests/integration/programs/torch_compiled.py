# SPDX-License-Identifier: Apache-2.0
"""One rank of torch_test.py: a whole step that torch.compile takes, with Talweg's calls in it.

It does what it does uncompiled, and torch has nothing to warn of in Talweg's functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import talweg.torch as tw
import torch
import torch.distributed as dist
from cases import run_cases
from torch import nn

_STEPS = 3
# Makes a model and a step over it.
_Makes = Callable[[str], tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]]


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _result(model: nn.Module, step: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    losses = []
    for number in range(_STEPS):
        generator = torch.Generator().manual_seed(_STEPS * number + tw.rank())
        losses.append(step(torch.randn(4, 8, generator=generator)).detach().clone())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def _check(make: _Makes, *named: str) -> None:
    """`named`: functions at which a graph ends, instead of going on within them."""
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


def _with_optimizer(overlaps: bool, name: str) -> Any:
    model = _model()
    optimizer = tw.DistributedOptimizer(
        _sgd(model),
        model.named_parameters(),
        name=f"{name}.{overlaps}",
        overlap_forward=model if overlaps else None,
    )

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if overlaps:
            optimizer.synchronize_parameters()  # type: ignore[attr-defined]
        return loss

    return model, step


def distributed_optimizer() -> None:
    _check(partial(_with_optimizer, False), "_before_step")


def overlap_with_forward() -> None:
    _check(partial(_with_optimizer, True), "ForwardOverlap._before_forward")


def hook_of_data_parallel() -> None:
    def make(name: str) -> Any:
        model = _model()
        parallel = nn.parallel.DistributedDataParallel(model)
        parallel.register_comm_hook(name, tw.ddp_hook)
        optimizer = _sgd(model)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = parallel(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return model, step

    dist.init_process_group("talweg")
    _check(make)
    dist.destroy_process_group()


def calls() -> None:
    """With a gradient through one, and what torch compiles as it stands."""

    def make(name: str) -> Any:
        model = _model()
        optimizer = _sgd(model)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = tw.push_pull(model(x).square().mean(), f"loss.{name}") * tw.size()
            loss.backward()
            for number, parameter in enumerate(model.parameters()):
                assert parameter.grad is not None
                tw.push_pull_inplace(parameter.grad, f"gradient.{number}.{name}")
            optimizer.step()
            return tw.all_gather(loss.detach().reshape(1) + tw.rank(), f"losses.{name}")

        return model, step

    _check(make, "push_pull")


def a_compiled_model_in_a_closure() -> None:
    """Talweg's step runs as it stands, and the model within it compiled."""
    compiled = 0

    def count(graph: Any, _: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph

    torch._dynamo.reset()
    model = _model()
    optimizer = tw.DistributedOptimizer(_sgd(model), model.named_parameters(), name="closure")
    forward = torch.compile(model, backend=count)

    def closure() -> float:
        optimizer.zero_grad()
        loss = forward(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    assert compiled > 0


if __name__ == "__main__":
    tw.init()
    run_cases(
        distributed_optimizer,
        overlap_with_forward,
        hook_of_data_parallel,
        calls,
        a_compiled_model_in_a_closure,
    )
