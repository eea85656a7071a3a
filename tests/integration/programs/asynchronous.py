# SPDX-License-Identifier: Apache-2.0
"""One rank of asynchronous_test.py: AsynchronousOptimizer with all that programs have."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import weakref
from typing import Any

import talweg
import talweg.torch as tw
import torch
from cases import run_cases
from expected_errors import expect
from torch import nn
from torch_models import local_step, same_everywhere, two_layers
from torch_models import sgd_of as _sgd

_WAIT_S = 120.0


def _counters(dtype: torch.dtype = torch.float32, count: int = 5) -> nn.Parameter:
    return nn.Parameter(torch.zeros(count, dtype=dtype))


def _adding(parameter: nn.Parameter, name: str, **keywords: Any) -> Any:
    """Returns an optimizer whose step adds the gradient's negative: sums of it are exact."""
    return tw.AsynchronousOptimizer(torch.optim.SGD([parameter], lr=1.0), name=name, **keywords)


def _add(parameter: nn.Parameter, optimizer: Any, number: float) -> None:
    parameter.grad = torch.full_like(parameter, -number)
    optimizer.step()


def _has(parameter: nn.Parameter, wanted: float) -> None:
    assert (parameter.detach() == wanted).all(), (parameter, wanted)


def _sum_of_all(number: float) -> float:
    return float(sum(tw.all_gather_object(number)))


def each_step_counts_once() -> None:
    """Ranks make different numbers of steps, of numbers that no two ranks have alike."""
    for ahead in (0, 1, 3):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
            parameter = _counters(dtype)
            optimizer = _adding(parameter, f"counts.{ahead}.{dtype}", ahead=ahead)
            steps = 3 + 2 * tw.rank()
            for _ in range(steps):
                _add(parameter, optimizer, 1.0 + tw.rank())
            optimizer.flush()
            _has(parameter, _sum_of_all(steps * (1.0 + tw.rank())))


def more_steps_after_a_flush() -> None:
    parameter = _counters()
    optimizer = _adding(parameter, "again")
    wanted = 0.0
    for _ in range(3):
        steps = tw.rank()  # Rank 0 makes none.
        for _ in range(steps):
            _add(parameter, optimizer, 1.0)
        optimizer.flush()
        wanted += _sum_of_all(steps)
        _has(parameter, wanted)
    optimizer.flush()  # Twice, without a step.
    _has(parameter, wanted)


def equal_beginnings() -> None:
    """Ranks that begin with other parameters take those of rank 0, also after a flush."""
    torch.manual_seed(tw.rank())
    model = two_layers()
    wanted = tw.broadcast_object([p.detach().clone() for p in model.parameters()])
    optimizer = tw.AsynchronousOptimizer(
        _sgd(model, 0.0), model.named_parameters(), name="beginnings"
    )
    local_step(model, optimizer, 0)
    optimizer.flush()
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), wanted))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(tw.rank() + 7)
    local_step(model, optimizer, 1)
    optimizer.flush()
    assert all((p == 7).all() for p in model.parameters())


def a_slow_rank_holds_nobody_up() -> None:
    """Rank 0 begins a step, and ends it when all others have made twenty."""
    model = two_layers()
    optimizer = tw.AsynchronousOptimizer(_sgd(model), model.named_parameters(), name="slow")
    local_step(model, optimizer, 0)
    ended = threading.Event()

    def all_others_have_ended() -> None:
        talweg.all_gather(torch.zeros(1).numpy(), name="slow.ended")
        ended.set()

    if tw.rank() == 0:
        thread = threading.Thread(target=all_others_have_ended)
        thread.start()
        assert ended.wait(_WAIT_S), "the others wait for rank 0"
        thread.join()
    else:
        for step in range(20):
            local_step(model, optimizer, step)
        all_others_have_ended()
    local_step(model, optimizer, 1)
    optimizer.flush()
    same_everywhere(model, "slow")


def a_lead() -> None:
    """Nobody is more than two steps ahead of rank 0, which waits for the others' steps."""
    parameter = _counters(count=tw.size())
    optimizer = _adding(parameter, "lead", ahead=0, lead=2)
    for step in range(8):
        if tw.rank() == 0:
            time.sleep(0.01)  # Others that do not wait get ahead meanwhile.
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad[tw.rank()] = -1.0
        optimizer.step()
        assert parameter[tw.rank()] == step + 1
        if tw.rank() == 0 and step < 7:
            assert parameter.max() <= step + 1 + 3, parameter
    optimizer.flush()
    _has(parameter, 8)


def what_models_have() -> None:
    """Layouts that are not contiguous, tied parameters, frozen ones and buffers."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(36, 36),
        nn.Linear(36, 36),
    )
    model[4].weight = model[3].weight
    model[3].bias.requires_grad_(False)
    frozen = model[3].bias.detach().clone()
    optimizer = tw.AsynchronousOptimizer(
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad]), name="models"
    )
    generator = torch.Generator().manual_seed(tw.rank())
    for _ in range(3 + tw.rank()):
        optimizer.zero_grad()
        model(torch.randn(4, 2, 3, 3, generator=generator)).square().mean().backward()
        optimizer.step()
    optimizer.flush()
    same_everywhere(model, "models")
    assert torch.equal(model[3].bias, frozen)
    means = tw.all_gather_object(model[1].running_mean.tolist())
    assert tw.size() == 1 or means[0] != means[1], "buffers stay each rank's own"


def closures_and_scalers() -> None:
    model = two_layers()
    optimizer = tw.AsynchronousOptimizer(
        torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), name="closures"
    )
    torch.manual_seed(tw.rank())
    inputs = torch.randn(8, 6)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    for _ in range(2 + tw.rank()):
        optimizer.step(closure)
    optimizer.flush()
    same_everywhere(model, "closures")

    model = two_layers()
    plain = tw.AsynchronousOptimizer(_sgd(model), model.named_parameters(), name="scalers")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        plain.zero_grad()
        loss = model(torch.randn(4, 6)).square().mean()
        if tw.rank() == step:  # This rank skips a step, which no other one does.
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(plain)
        scaler.update()
    plain.flush()
    same_everywhere(model, "scalers")
    assert all(p.isfinite().all() for p in model.parameters())


def several_at_once() -> None:
    """Two optimizers, and one of a process set, whose ranks alone meet."""
    one, other = _counters(), _counters()
    first, second = _adding(one, "first"), _adding(other, "second")
    for _ in range(3):
        _add(one, first, 1.0)
        _add(other, second, 2.0)
    if tw.rank() < 2:
        among = _counters()
        third = _adding(among, "third", process_set=tw.ProcessSet([0, 1][: tw.size()]))
        for _ in range(4):
            _add(among, third, 1.0 + tw.rank())
        third.flush()
        _has(among, 12.0 if tw.size() > 1 else 4.0)
    second.flush()
    first.flush()
    _has(one, 3.0 * tw.size())
    _has(other, 6.0 * tw.size())


def copies_and_checkpoints() -> None:
    parameter = _counters()
    optimizer = _adding(parameter, "copies")
    _add(parameter, optimizer, 1.0)
    for plain in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(plain) is torch.optim.SGD
        plain.step()
    if tw.size() > 1:
        call = optimizer.load_state_dict
        expect(talweg.InvalidArgument, "call flush() at all ranks", call, optimizer.state_dict())
    optimizer.flush()
    _has(parameter, float(tw.size()))
    optimizer.load_state_dict(optimizer.state_dict())
    _add(parameter, optimizer, 1.0)
    optimizer.flush()
    _has(parameter, 2.0 * tw.size())


def other_calls_meanwhile() -> None:
    """Collectives of the program's own between its steps, in step with the others."""
    parameter = _counters()
    optimizer = _adding(parameter, "others")
    for step in range(5):
        _add(parameter, optimizer, 1.0)
        total = tw.push_pull(torch.ones(1000), name="metric", op=tw.Op.SUM)
        assert (total == tw.size()).all()
        tw.barrier()
        assert step >= 0
    optimizer.flush()
    _has(parameter, 5.0 * tw.size())


def what_is_dropped_goes() -> None:
    """After flush() nothing holds an optimizer. Before it, its meetings go on without it."""
    parameter = _counters()
    optimizer = _adding(parameter, "dropped")
    _add(parameter, optimizer, 1.0)
    optimizer.flush()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    optimizer = _adding(parameter, "dropped in a meeting")
    for _ in range(1 + tw.rank()):
        _add(parameter, optimizer, 1.0)
    del optimizer
    gc.collect()  # The program's end flushes it.


def wrong_calls() -> None:
    parameter = _counters()
    sgd = torch.optim.SGD([parameter], lr=1.0)
    make: Any = tw.AsynchronousOptimizer
    for keywords, text in (
        ({"ahead": -1}, "ahead is -1; it must be a whole number of steps, 0 or more"),
        ({"ahead": 1.5}, "ahead is 1.5"),
        ({"lead": True}, "lead is True"),
        ({"process_set": [0]}, "it must be a talweg.ProcessSet"),
        ({"named_parameters": []}, "are not in named_parameters"),
    ):
        expect(talweg.InvalidArgument, text, make, sgd, **keywords)
    expect(talweg.InvalidArgument, "the optimizer is a str", make, "sgd")
    optimizer = make(sgd, name="wrong")
    expect(talweg.InvalidArgument, "is one of Talweg's already", make, optimizer)
    expect(talweg.InvalidArgument, "AsynchronousOptimizer", tw.DistributedOptimizer, optimizer)
    group = {"params": [_counters()]}
    expect(talweg.InvalidArgument, "an optimizer with all its groups", sgd.add_param_group, group)
    state = tw.Elastic(optimizer=optimizer, step=0)
    expect(talweg.Unsupported, "AsynchronousOptimizer in an Elastic state", state.begin)
    if tw.size() > 1:
        odd = _adding(_counters(), "odd", lead=tw.rank() or None)
        expect(talweg.Mismatch, "rank 0 has ahead=1, lead=None, and rank 1 has", odd.flush)
        odd = _adding(_counters(count=5 + tw.rank() // (tw.size() - 1)), "odd shapes")
        expect(talweg.Mismatch, "rank 0 has 'parameter.0' (float32[5]) where rank", odd.flush)


def main() -> None:
    tw.init()
    torch.set_num_threads(1)
    run_cases(
        each_step_counts_once,
        more_steps_after_a_flush,
        equal_beginnings,
        a_slow_rank_holds_nobody_up,
        a_lead,
        what_models_have,
        closures_and_scalers,
        several_at_once,
        copies_and_checkpoints,
        other_calls_meanwhile,
        what_is_dropped_goes,
        wrong_calls,
    )
    # The end of the program waits until all ranks have ended.
    parameter = _counters()
    optimizer = _adding(parameter, "left open")
    for _ in range(1 + tw.rank()):
        _add(parameter, optimizer, 1.0)
    size = tw.size()
    tw.shutdown()
    _has(parameter, size * (size + 1) / 2)
    print("done", flush=True)


if __name__ == "__main__":
    main()
