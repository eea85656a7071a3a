# SPDX-License-Identifier: Apache-2.0
"""One rank of torch_test.py. torch.compile compiles whole steps with Talweg's calls.

A step does the same as the plain one, and torch warns of nothing in Talweg's functions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import talweg
import talweg.torch as tw
import torch
import torch.distributed as dist
from cases import run_cases
from compiled_steps import check_compiled, sgd, small_model, step_over
from torch import nn


def _with_optimizer(overlaps: bool, name: str) -> Any:
    model = small_model()
    optimizer = tw.DistributedOptimizer(
        sgd(model),
        model.named_parameters(),
        name=f"{name}.{overlaps}",
        overlap_forward=model if overlaps else None,
    )
    after = optimizer.synchronize_parameters if overlaps else None  # type: ignore[attr-defined]
    return model, step_over(model, optimizer, after=after)


def distributed_optimizer() -> None:
    check_compiled(partial(_with_optimizer, False), "_before_step")


def overlap_with_forward() -> None:
    check_compiled(partial(_with_optimizer, True), "ForwardOverlap._before_forward")


def hook_of_data_parallel() -> None:
    def make(name: str) -> Any:
        model = small_model()
        parallel = nn.parallel.DistributedDataParallel(model)
        parallel.register_comm_hook(name, tw.ddp_hook)
        optimizer = sgd(model)

        return model, step_over(parallel, optimizer)

    dist.init_process_group("talweg")
    check_compiled(make)
    dist.destroy_process_group()


def calls() -> None:
    """A call has a gradient, and others stay as they are in the compiled step."""

    def make(name: str) -> Any:
        model = small_model()
        optimizer = sgd(model)

        def step(x: torch.Tensor) -> torch.Tensor:
            assert tw.is_initialized()
            optimizer.zero_grad()
            loss = tw.push_pull(model(x).square().mean(), f"loss.{name}") * tw.size()
            loss.backward()
            for number, parameter in enumerate(model.parameters()):
                assert parameter.grad is not None
                tw.push_pull_inplace(parameter.grad, f"gradient.{number}.{name}")
            optimizer.step()
            return tw.all_gather(loss.detach().reshape(1) + tw.rank(), f"losses.{name}")

        return model, step

    check_compiled(make, "push_pull")


def a_compiled_model_in_a_closure() -> None:
    """Talweg's step is not compiled, and the model within it is."""
    compiled = 0

    def count(graph: Any, _: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph

    torch._dynamo.reset()
    model = small_model()
    optimizer = tw.DistributedOptimizer(sgd(model), model.named_parameters(), name="closure")
    forward = torch.compile(model, backend=count)

    def closure() -> float:
        optimizer.zero_grad()
        loss = forward(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    assert compiled > 0


def compiled_backward() -> None:
    """torch compiles backward passes. Each still ends with the averages in `.grad`."""
    for overlaps in (False, True):
        torch._dynamo.reset()
        model = small_model()
        name = f"backward.{overlaps}"
        optimizer = tw.DistributedOptimizer(
            sgd(model),
            model.named_parameters(),
            name=name,
            overlap_forward=model if overlaps else None,
        )
        alone = small_model()
        of_alone = sgd(alone)
        forward = torch.compile(model, backend="aot_eager")
        for step in range(3):
            inputs = torch.randn(
                4, 8, generator=torch.Generator().manual_seed(9 * step + tw.rank())
            )
            optimizer.zero_grad()
            with torch._dynamo.config.patch(compiled_autograd=True):
                forward(inputs).square().mean().backward()
            of_alone.zero_grad()
            alone(inputs).square().mean().backward()
            for number, (parameter, other) in enumerate(
                zip(model.parameters(), alone.parameters(), strict=True)
            ):
                assert other.grad is not None
                other.grad = tw.push_pull(other.grad, f"{name}.{number}")
                assert overlaps or torch.equal(parameter.grad, other.grad), (step, number)
            optimizer.step()
            of_alone.step()
        optimizer.synchronize_parameters()  # type: ignore[attr-defined]
        for parameter, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.equal(parameter, other), name


def hook_without_buckets() -> None:
    dist.init_process_group("talweg")
    with torch._dynamo.config.patch(compiled_autograd=True, optimize_ddp="python_reducer"):
        parallel = nn.parallel.DistributedDataParallel(small_model())
        parallel.register_comm_hook(None, tw.ddp_hook)
        try:
            torch.compile(parallel, backend="aot_eager")(torch.ones(4, 8)).sum().backward()
        except talweg.InvalidArgument as error:
            assert "python_reducer" in str(error), error
        else:
            raise AssertionError("no error")
    dist.destroy_process_group()


if __name__ == "__main__":
    tw.init()
    run_cases(
        distributed_optimizer,
        overlap_with_forward,
        hook_of_data_parallel,
        calls,
        a_compiled_model_in_a_closure,
        compiled_backward,
        hook_without_buckets,
    )
