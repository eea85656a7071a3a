# SPDX-License-Identifier: Apache-2.0
"""Compares torch.distributed.nn and .algorithms over Talweg with the same over Gloo."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as with_gradients
from c10d_groups import each_backend
from c10d_models import sgd_of, weights_of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

_CASES: dict[str, Callable[[int, int], Any]] = {}


def case(run: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """Registers a case, whose results are compared."""
    _CASES[run.__name__] = run
    return run


def _leaf(rank: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def _backward(rank: int, results: Any, leaves: list[torch.Tensor]) -> list[Any]:
    """Returns the gradients of a loss that differs at each rank."""
    every = [results] if isinstance(results, torch.Tensor) else list(results)
    sum((each * each * (rank + at + 1)).sum() for at, each in enumerate(every)).backward()
    return [leaf.grad for leaf in leaves]


@case
def calls_with_gradients(rank: int, size: int) -> Any:
    found: list[Any] = []
    for call in (
        lambda leaf: with_gradients.all_reduce(leaf),
        lambda leaf: with_gradients.all_gather(leaf),
        lambda leaf: with_gradients.all_to_all_single(torch.empty_like(leaf), leaf),
    ):
        leaf = _leaf(rank, 2 * size, 3)
        results = call(leaf)
        found += [results, _backward(rank, results, [leaf])]
    for call in (
        lambda leaves: with_gradients.reduce_scatter(torch.empty_like(leaves[0]), leaves),
        lambda leaves: with_gradients.all_to_all(
            [torch.empty_like(leaf) for leaf in leaves], leaves
        ),
    ):
        leaves = [_leaf(rank + 10 * at, 4, 3) for at in range(size)]
        results = call(leaves)
        found.append(_backward(rank, results, leaves))
    return found


@case
def calls_of_a_root_with_gradients(rank: int, size: int) -> Any:
    is_root, found = rank == 1, []
    for call in (with_gradients.broadcast, with_gradients.reduce, with_gradients.gather):
        leaf = _leaf(rank, 4, 3)
        results = call(leaf, 1)
        gradients = _backward(rank, results, [leaf])
        # At other ranks than the root the result of a reduce or a gather, and the input of a
        # broadcast, mean nothing.
        found.append(results if is_root else None)
        found.append(gradients if is_root or call is not with_gradients.broadcast else None)
    leaves = [_leaf(rank + 10 * at, 4, 3) for at in range(size)]
    part = with_gradients.scatter(leaves, 1)
    gradients = _backward(rank, part, leaves)
    return [*found, part, gradients if is_root else None]


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)
    )


def _steps(model: nn.Module, optimizer: Any, rank: int, steps: int) -> Any:
    """Makes `steps` steps, and yields after each."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 12, generator=generator)).square().mean().backward()
        optimizer.step()
        yield step


@case
def averagers_of_models(rank: int, size: int) -> Any:
    found = []
    periods = OrderedDict([(2, 2), (4, size)] if size > 2 else [(2, size)])
    for averager in (
        averagers.PeriodicModelAverager(period=2, warmup_steps=1),
        hierarchical_model_averager.HierarchicalModelAverager(periods, warmup_steps=1),
    ):
        model = _model()
        for _ in _steps(model, sgd_of(model), rank, 6):
            averager.average_parameters(model.parameters())
        found.append(weights_of(model))
    return found


@case
def post_local_sgd(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_model())
    some, _ = dist.new_subgroups(2)
    state = post_localSGD_hook.PostLocalSGDState(None, some, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(optim=sgd_of(model), averager=averager)
    for _ in _steps(model, optimizer, rank, 7):
        pass
    return weights_of(model)


@case
def half_hook_around_another(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_model())
    hook = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    model.register_comm_hook(dist.group.WORLD, hook)
    for _ in _steps(model, sgd_of(model), rank, 4):
        pass
    return weights_of(model)


@case
def join_of_a_model_and_its_optimizer(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    with Join([model, optimizer]):
        for _ in _steps(model, optimizer, rank, 3 + rank):
            pass
    return weights_of(model)


class _Counter(Joinable):
    """A Joinable that counts the calls of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[float] = []

    def __call__(self) -> None:
        Join.notify_join_context(self)
        one = torch.ones(1)
        dist.all_reduce(one)
        self.counts.append(one.item())

    def join_hook(self, **_: Any) -> JoinHook:
        class Hook(JoinHook):
            def main_hook(self) -> None:
                dist.all_reduce(torch.zeros(1))

        return Hook()

    @property
    def join_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        return dist.group.WORLD


@case
def join_of_a_class_of_the_programs(rank: int, size: int) -> Any:
    counter = _Counter()
    with Join([counter]):
        for _ in range(3 * (rank + 1)):
            counter()
    with_error = DistributedDataParallel(_model())
    try:
        with Join([with_error], throw_on_early_termination=True):
            for _ in _steps(with_error, sgd_of(with_error), rank, 2 + rank):
                pass
    except RuntimeError as error:
        return [counter.counts, "exhausted all inputs" in str(error)]
    return None


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # Gloo rounds a sum of halves after each rank, Talweg once.
    each_backend(_CASES, tolerance=1e-5, tolerances={"half_hook_around_another": 2e-3})
