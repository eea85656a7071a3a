# SPDX-License-Identifier: Apache-2.0
"""One rank of tried_hard_test.py. It does what users do although no manual tells them to."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import types
from collections import OrderedDict
from typing import Any
from unittest import mock

import talweg
import talweg.torch as tw
import torch
from cases import run_cases
from expected_errors import expect
from torch import nn
from torch_models import distributed, same_everywhere, step_on_own_data


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("no state to give")


def _mismatch_of(optimizer: Any, model: nn.Module) -> None:
    try:
        model(torch.ones(2, 4)).sum().backward()
    except talweg.Mismatch as error:
        # A program that catches the error does not hang in the next call.
        expect(talweg.Mismatch, str(error), optimizer.synchronize)
        print(f"mismatch: {error}", flush=True)


def names_that_differ() -> None:
    """Parameters differ only in their names."""
    last = tw.size() - 1
    names = ["body", "head" if tw.rank() < last else "classifier"]
    model = nn.Sequential(OrderedDict((name, nn.Linear(4, 4)) for name in names))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _mismatch_of(tw.DistributedOptimizer(optimizer, model.named_parameters()), model)


def names_in_another_order() -> None:
    model = nn.Linear(4, 4)
    named = list(model.named_parameters())
    if tw.rank() > 0:
        named.reverse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _mismatch_of(tw.DistributedOptimizer(optimizer, named, name="order"), model)


def line_searches() -> None:
    """A closure returns the rank's own loss, but all ranks must call it equally often."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.3)
    make = functools.partial(torch.optim.LBFGS, line_search_fn="strong_wolfe")
    optimizer = distributed(model, "search", make)
    torch.manual_seed(tw.rank())
    x = torch.randn(16, 3)
    y = (1 + 50 * tw.rank()) * x.sin().sum(1, keepdim=True)
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(3)]
    assert tw.all_gather_object((calls, losses)) == [(calls, losses)] * tw.size()
    assert losses[2] < losses[0], losses
    same_everywhere(model, "line searches")


def wrapped_twice() -> None:
    """An optimizer is wrapped twice, as when a notebook's cell runs again."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    plain = type(optimizer)
    tw.broadcast_parameters(model.state_dict())
    for time in range(3):
        optimizer = tw.DistributedOptimizer(optimizer, model.named_parameters(), name="twice")
        step_on_own_data(model, optimizer, time)
        assert isinstance(optimizer, plain) and type(optimizer).__mro__.count(plain) == 1
        hooks = optimizer._optimizer_step_pre_hooks  # type: ignore[attr-defined]
        assert len(hooks) == 1, hooks


def overlapped_after_plain() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tw.broadcast_parameters(model.state_dict())
    for overlap in (None, model, model, None):
        optimizer = tw.DistributedOptimizer(
            optimizer, model.named_parameters(), name="overlapped", overlap_forward=overlap
        )
        optimizer.zero_grad()
        model(torch.full((2, 6), 1.0 + tw.rank())).sum().backward()
        optimizer.step()
        optimizer.synchronize_parameters()  # type: ignore[attr-defined]
        same_everywhere(model, "overlapped")
        hooks = len(model._forward_pre_hooks)
        assert hooks == (overlap is not None), hooks
    overlapped = tw.DistributedOptimizer(
        optimizer, model.named_parameters(), name="overlapped", overlap_forward=model
    )
    torch.optim.lr_scheduler.StepLR(overlapped, 1)
    expect(talweg.InvalidArgument, "make both anew", tw.DistributedOptimizer, overlapped)


def pickled() -> None:
    model = nn.Linear(6, 3)
    for overlap in (None, model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
        tw.broadcast_parameters(model.state_dict())
        tw.DistributedOptimizer(
            optimizer, model.named_parameters(), name="pickled", overlap_forward=overlap
        )
        step_on_own_data(model, optimizer, 0)
        for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
            assert type(other) is torch.optim.Adam
            assert other.param_groups[0]["lr"] == 0.25
            [state, _] = other.state.values()
            assert state["step"] == 1
            for group in other.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.ones_like(parameter)
            other.step()  # Only this rank makes the step.
        step_on_own_data(model, optimizer, 1)


def objects_that_cannot_be_pickled() -> None:
    for root in range(tw.size()):
        mine = _Unpicklable() if tw.rank() == root else "not looked at"
        own, text = RuntimeError, "no state to give"
        if tw.rank() != root:
            own, text = (
                talweg.InvalidArgument,
                f"rank {root} cannot pickle its object (RuntimeError: {text}",
            )
        expect(own, text, tw.broadcast_object, mine, root)
        assert tw.broadcast_object(tw.rank(), root) == root
        gathered = mine if tw.rank() == root else tw.rank()
        expect(own, text, tw.all_gather_object, gathered)
    assert tw.all_gather_object(tw.rank()) == list(range(tw.size()))


def objects_that_only_cloudpickle_takes() -> None:
    """cloudpickle sends a lambda if it is installed. Otherwise the error names the remedy."""
    rank, one = tw.rank(), types.ModuleType("cloudpickle")
    one.dumps = lambda value, protocol: pickle.dumps(value(), protocol)  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, cloudpickle=one):
        sent = tw.broadcast_object(lambda: "what it returns", 0)
        assert (sent() if rank == 0 else sent) == "what it returns"
        assert tw.all_gather_object(lambda: rank) == list(range(tw.size()))
    with mock.patch.dict(sys.modules, {"cloudpickle": None}):
        own, text = (
            (AttributeError, "pickle")
            if rank == 0
            else (talweg.InvalidArgument, "install cloudpickle")
        )
        expect(own, text, tw.broadcast_object, lambda: 1, 0)


def optimizer_state_that_cannot_be_pickled() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if tw.rank() == 0:
        optimizer.param_groups[0]["extra"] = _Unpicklable()
    own, text = RuntimeError, "no state to give"
    if tw.rank() > 0:
        own, text = talweg.InvalidArgument, "rank 0 cannot pickle"
    expect(own, text, tw.broadcast_optimizer_state, optimizer)


# These leave rounds open, which ends the job.
LAST = [names_that_differ, names_in_another_order]
CASES = [
    line_searches,
    wrapped_twice,
    overlapped_after_plain,
    pickled,
    objects_that_cannot_be_pickled,
    objects_that_only_cloudpickle_takes,
    optimizer_state_that_cannot_be_pickled,
]


def main() -> int:
    torch.set_num_threads(1)
    tw.init()
    run_cases(*([each for each in LAST if each.__name__ in sys.argv] or CASES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
