# SPDX-License-Identifier: Apache-2.0
"""One rank of local_steps_test.py: LocalSGD and DiLoCo beside a model of their rules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import talweg.torch as tw
import torch
from cases import run_cases
from local_steps_model import AdamW, Arrays, Model, Sgd, Told
from torch import nn
from torch_models import same_everywhere

_STEPS = 50
_NESTEROV: dict[str, Any] = {"outer_lr": 0.7, "outer_momentum": 0.9, "nesterov": True}


def _network() -> nn.Sequential:
    torch.manual_seed(5)  # All ranks begin alike; equal_beginnings() has others.
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3))


def _batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.sin(inputs[:, :3] * (1 + rank))


def _loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs, wanted = _batch(rank, step)
    dtype = next(model.parameters()).dtype
    return nn.functional.mse_loss(model(inputs.to(dtype)), wanted.to(dtype))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        _loss(model, tw.rank(), step).backward()
        optimizer.step()


def _gradients_of(network: nn.Module) -> Callable[[int, int, Arrays], Arrays]:
    """Returns a function that computes any rank's gradients, in f64."""
    model = copy.deepcopy(network).double()

    def compute(rank: int, step: int, parameters: Arrays) -> Arrays:
        model.zero_grad()
        with torch.no_grad():
            for own, given in zip(model.parameters(), parameters):
                own.copy_(torch.from_numpy(given))
        _loss(model, rank, step).backward()
        return [own.grad.numpy() for own in model.parameters()]

    return compute


def _arrays(model: nn.Module) -> Arrays:
    return [each.detach().double().numpy().copy() for each in model.parameters()]


def _close(ours: Arrays, theirs: Arrays, what: str, tolerance: float = 2e-5) -> None:
    far = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs))
    assert far < tolerance, f"{what}: off by {far}"


def _follows_the_model(told: Told, adam: bool, name: str) -> None:
    """Compares each step of a job with the model: this rank's parameters, and the global ones."""
    network = _network()
    inner: torch.optim.Optimizer
    if adam:
        inner = torch.optim.AdamW(network.parameters(), lr=0.01)
        own: list[Any] = [AdamW(0.01) for _ in range(tw.size())]
    else:
        inner = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.8)
        own = [Sgd(0.05, 0.8) for _ in range(tw.size())]
    model = Model(told, _arrays(network), own, _gradients_of(network))
    if told.outer_lr == 1.0:
        optimizer = tw.LocalSGD(network, inner, told.every, name=name)
    else:
        optimizer = tw.DiLoCo(
            network,
            inner,
            every=told.every,
            outer_lr=told.outer_lr,
            outer_momentum=told.outer_momentum,
            nesterov=told.nesterov,
            fragments=max(len(told.fragments), 1),
            delay=told.delay,
            mix=told.mix,
            name=name,
        )
    for step in range(_STEPS):
        _train(network, optimizer, 1, step)
        model.make_step()
        _close(_arrays(network), model.ranks[tw.rank()], f"{name}, step {step}")
        with optimizer.global_parameters():
            _close(_arrays(network), model.shared, f"{name}, global in step {step}")
            same_everywhere(network, f"{name}, global in step {step}")
        _close(_arrays(network), model.ranks[tw.rank()], f"{name}, after step {step}")
        if not told.fragments and told.delay == 0 and (step + 1) % told.every == 0:
            same_everywhere(network, f"{name}, step {step}")
            assert optimizer.is_synchronized
    moved = max(float(np.abs(a - b).max()) for a, b in zip(model.shared, _arrays(_network())))
    assert moved > 0.05, f"{name}: this shows nothing, as parameters have moved by {moved}"
    optimizer.flush()
    same_everywhere(network, f"{name}, after flush()")
    assert optimizer.is_synchronized


def local_sgd() -> None:
    _follows_the_model(Told(4), False, "local_sgd")
    _follows_the_model(Told(7), True, "local_adam")


def diloco() -> None:
    _follows_the_model(Told(5, **_NESTEROV), True, "nesterov")
    _follows_the_model(Told(6, 0.5, 0.6, False), False, "heavy_ball")


# Parameters 0 to 5 have 54, 9, 36, 4, 12 and 3 elements, and are cut so.
_TWO = [[0, 1], [2, 3, 4, 5]]
_THREE = [[0], [1], [2, 3, 4, 5]]


def streaming() -> None:
    _follows_the_model(Told(6, **_NESTEROV, fragments=_TWO), True, "turns")
    _follows_the_model(Told(6, **_NESTEROV, delay=2), True, "late")
    _follows_the_model(Told(6, **_NESTEROV, delay=5, mix=0.5, fragments=_TWO), True, "mixed")
    _follows_the_model(Told(8, 0.9, delay=3, mix=0.3, fragments=_THREE), False, "three")


def averaging() -> None:
    """An outer step with lr 1 and no momentum is the mean of the parameters."""
    one, other = _network(), _network()
    plain = torch.optim.AdamW(other.parameters(), lr=0.01)
    local = tw.DiLoCo(
        one,
        torch.optim.AdamW(one.parameters(), lr=0.01),
        every=5,
        outer_lr=1.0,
        outer_momentum=0.0,
        name="averaging",
    )
    for period in range(4):
        _train(one, local, 5, 5 * period)
        _train(other, plain, 5, 5 * period)
        for place, parameter in enumerate(other.parameters()):
            mean = tw.push_pull(parameter.detach(), name=f"mean.{place}")
            parameter.data.copy_(mean)
        _close(_arrays(one), _arrays(other), f"period {period}", 1e-5)


def every_step() -> None:
    """LocalSGD of SGD with every=1 is synchronous SGD."""
    one, other = _network(), _network()
    local = tw.LocalSGD(one, torch.optim.SGD(one.parameters(), lr=0.1), 1, name="every_step")
    plain = torch.optim.SGD(other.parameters(), lr=0.1)
    together = tw.DistributedOptimizer(plain, other.named_parameters(), name="together")
    for step in range(20):
        _train(one, local, 1, step)
        _train(other, together, 1, step)
        _close(_arrays(one), _arrays(other), f"step {step}", 2e-6)


if __name__ == "__main__":
    tw.init()
    torch.set_num_threads(1)
    run_cases(local_sgd, diloco, streaming, averaging, every_step)
    tw.shutdown()
