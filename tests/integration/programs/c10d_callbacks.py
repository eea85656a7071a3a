# SPDX-License-Identifier: Apache-2.0
"""Checks calls in callbacks of futures. Ranks complete the futures in different orders."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import talweg
import talweg.torch  # It makes the backend known.
import torch
import torch.distributed as dist
from expected_errors import expect
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    default_hooks,
    powerSGD_hook,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

_RANK, _SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
_SUM = _SIZE * (_SIZE + 1) / 2  # The sum of the ranks' numbers from 1 on.
_BUCKET_MB = 0.01  # With it every layer of _model() has its own buckets.
_STEPS = 8


def _summed(value: float, count: int = 3, group: Any = None) -> Any:
    """Returns the future of a sum. Each rank gives `value` times its number from 1 on."""
    tensor = torch.full((count,), value * (_RANK + 1))
    return dist.all_reduce(tensor, group=group, async_op=True).get_future()


def check_order() -> None:
    """Callbacks make calls beside the program, at ranks whose futures end at different times."""

    def again(future: Any) -> Any:
        return _summed(float(future.value()[0][0])).wait()

    for turn in range(20):
        works = [
            dist.all_reduce(torch.full((1 + 40_000 * (at % 2),), at + _RANK), async_op=True)
            for at in range(4)
        ]
        results: list[Any] = []
        for at in reversed(range(4)):
            if (at + turn + _RANK) % 3 == 0:
                works[at].wait()  # A callback that is chained now runs at once, if it is the first.
            results.append(works[at].get_future().then(again).then(again))
            gathered = [torch.zeros(1) for _ in range(_SIZE)]
            dist.all_gather(gathered, torch.tensor([float(at + _RANK)]))
            assert gathered == [torch.tensor([float(at + rank)]) for rank in range(_SIZE)]
        for at, result in zip(reversed(range(4)), results):
            expected = (_SIZE * at + sum(range(_SIZE))) * _SUM**2
            assert result.wait()[0].tolist() == [expected] * 3, (turn, at, result.wait(), expected)


def check_depth() -> None:
    """Callbacks chain callbacks and wait for them, deeper than there are lines."""

    def deeper(left: int) -> Callable[[Any], float]:
        def callback(future: Any) -> float:
            if left == 0:
                return float(future.value()[0][0])
            return _summed(1.0).then(deeper(left - 1)).wait() + left

        return callback

    futures = [_summed(1.0, 1 + 5000 * at).then(deeper(10)) for at in range(3)]
    assert [each.wait() for each in futures] == [_SUM + 55] * 3
    ended: torch.futures.Future[int] = torch.futures.Future()

    def for_ever(left: int) -> Callable[[Any], None]:
        def callback(future: Any) -> None:
            if left == 0:
                ended.set_result(int(future.value()[0][0]))
            else:
                _summed(1.0).add_done_callback(for_ever(left - 1))

        return callback

    _summed(1.0).add_done_callback(for_ever(40))
    assert ended.wait() == int(_SUM)


def check_groups() -> None:
    """Sums run over one half of the ranks, and in their callbacks over ranks of both halves."""
    half = _SIZE // 2
    inside = [dist.new_group(list(range(at * half, (at + 1) * half))) for at in range(2)]
    across = [dist.new_group([at, at + half]) for at in range(half)]
    mine, others = inside[_RANK // half], across[_RANK % half]

    def then_across(future: Any) -> Any:
        tensor = future.value()[0]
        dist.all_reduce(tensor, group=others)
        return tensor

    futures = [_summed(float(at), 1 + at, mine).then(then_across) for at in range(10)]
    for at, future in enumerate(futures):
        dist.all_reduce(torch.ones(1), group=others)
        assert future.wait().tolist() == [at * _SUM] * (1 + at)


def check_failures() -> None:
    """A failure is raised with its own type where the value is wanted."""

    def fails(future: Any) -> Any:
        raise KeyError(f"no weights, but {type(future.value())}")

    failed = _summed(1.0).then(fails)
    expect(KeyError, "no ", failed.wait)
    expect(KeyError, "no ", failed.then(lambda future: future.value()).wait)
    told: list[Any] = []
    future = _summed(1.0)
    future.wait()
    future.add_done_callback(told.append)
    assert told == [future]

    model = DistributedDataParallel(_model())
    model.register_comm_hook(
        None, lambda _, bucket: default_hooks.allreduce_hook(None, bucket).then(fails)
    )
    loss = model(torch.ones(1, 32)).sum()
    expect(RuntimeError, "a callback has raised (KeyError: ", loss.backward)


def _model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(5)]
    return nn.Sequential(*layers)


def _train(model: Any, step: Callable[[int], None]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(_RANK)
    for at in range(_STEPS):
        model.zero_grad()
        inputs = torch.randn(4, 32, generator=generator)
        (model(inputs) - inputs).square().mean().backward()
        step(at)
    return [each.detach() for each in model.parameters()]


def _require_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other), (one - other).abs().max()


def check_power_sgd() -> None:
    """Several buckets give the same result as when each waits for the one before it."""

    def hook(state: Any, bucket: Any, waits: bool) -> Any:
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        if waits:
            future.wait()
        return future

    def trained(waits: bool) -> list[torch.Tensor]:
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, random_seed=3)
        model = DistributedDataParallel(_model(), bucket_cap_mb=_BUCKET_MB)
        model.register_comm_hook(state, lambda state, bucket: hook(state, bucket, waits))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return _train(model, lambda at: optimizer.step())

    _require_equal(trained(waits=False), trained(waits=True))


def check_optimizer_in_callbacks() -> None:
    """ZeroRedundancyOptimizer(overlap_with_ddp=True) trains as SGD that begins in step 3."""

    def overlapped(make_hook: Any, shard_buckets: bool) -> list[torch.Tensor]:
        model = DistributedDataParallel(
            _model(), bucket_cap_mb=_BUCKET_MB, gradient_as_bucket_view=True
        )
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        hook = make_hook(
            default_hooks.allreduce_hook, model, optimizer, shard_buckets=shard_buckets
        )
        model.register_comm_hook(None, hook)
        return _train(model, lambda at: None)

    model = DistributedDataParallel(_model())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    # The hook makes the optimizer's state in the second step.
    expected = _train(model, lambda at: sgd.step() if at >= 2 else None)
    for make_hook in (
        ddp_zero_hook.hook_with_zero_step,
        ddp_zero_hook.hook_with_zero_step_interleaved,
    ):
        for shard_buckets in (False, True):
            _require_equal(overlapped(make_hook, shard_buckets), expected)


def _forked(call: Callable[[], object]) -> int:
    """Returns 0 if `call` raises Forked in a fork of this process."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # Ends a hang.
        try:
            call()
        except talweg.Forked:
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1]


def check_forks() -> None:
    """A fork, as a DataLoader's worker, is told so, also while its parent has calls under way."""
    if dist.get_rank() != 0:
        talweg.barrier()
    tensor = torch.ones(2)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    if dist.get_rank() == 0:
        for call in (
            lambda: dist.all_reduce(torch.ones(2)),
            lambda: dist.all_reduce(torch.ones(2), async_op=True),
            lambda: future.then(lambda _: None),
            future.wait,
            lambda: dist.new_group([0, 1]),  # Ranks that have made no group before.
            lambda: dist.new_group(),
        ):
            assert _forked(call) == 0
        talweg.barrier()
    future.wait()
    assert tensor[0] == dist.get_world_size()


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("talweg")
    check_order()
    check_depth()
    if _SIZE % 2 == 0 and _SIZE > 2:
        check_groups()
    check_failures()
    check_forks()
    check_power_sgd()
    check_optimizer_in_callbacks()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
