# SPDX-License-Identifier: Apache-2.0
"""One rank of torch_test.py. It does to models and gradients what training programs do."""

from __future__ import annotations

import copy
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import talweg
import talweg.torch as tw
import torch
from cases import run_cases
from talweg.torch import _in_place
from torch import nn
from torch_models import distributed, same_everywhere, step_on_own_data, two_layers


def frozen_then_thawed() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    optimizer = distributed(model, "frozen")
    before = model[0].weight.detach().clone()
    for step in range(5):
        if step == 2:
            assert torch.equal(model[0].weight, before)
            model.requires_grad_(True)
        if step == 3:
            model[1].requires_grad_(False)
            before = model[1].weight.detach().clone()
        step_on_own_data(model, optimizer, step)
    assert torch.equal(model[1].weight, before)


def thawed_at_one_rank() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    optimizer = distributed(model, "disagree")
    step_on_own_data(model, optimizer, 0)
    model[0].requires_grad_(tw.rank() == 0)
    step_on_own_data(model, optimizer, 1)


def parameters_that_are_added() -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    tw.broadcast_parameters(model.state_dict())
    tw.DistributedOptimizer(optimizer, model[1].named_parameters(), name="added")
    before = model[0].weight.detach().clone()
    for step in range(4):
        if step == 2:
            assert torch.equal(model[0].weight, before)
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.05})
        step_on_own_data(model, optimizer, step)
    assert not torch.equal(model[0].weight, before)


def shared_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    model = Tied()
    # A program may name the parameter once, or by each of its two names.
    for name, twice in (("tied", False), ("tied.twice", True)):
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        tw.broadcast_parameters(model.state_dict())
        named = model.named_parameters(remove_duplicate=not twice)
        optimizer = tw.DistributedOptimizer(sgd, named, name=name)
        for step in range(2):
            step_on_own_data(model, optimizer, step)


def another_dtype() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "dtype")
    for step in range(4):
        if step == 2:
            model.to(torch.bfloat16)
        step_on_own_data(model, optimizer, step)


def complex_parameters() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    sgd = torch.optim.SGD([parameter], lr=0.1)
    tw.DistributedOptimizer(sgd, [("c", parameter)], name="complex")
    (parameter * complex(tw.rank(), 1)).real.sum().backward()
    assert parameter.grad is not None
    assert torch.allclose(parameter.grad, torch.tensor(complex((tw.size() - 1) / 2, -1)))
    value = torch.tensor(complex(tw.rank(), -1.0)).expand(2, 3)
    total = tw.push_pull(value, average=False)
    wanted = complex(tw.size() * (tw.size() - 1) / 2, -tw.size())
    assert total.shape == (2, 3) and (total == wanted).all()


def an_optimizer_for_the_same_parameters() -> None:
    model = nn.Linear(6, 3)
    for _ in range(3):
        optimizer = distributed(model, "again")
        step_on_own_data(model, optimizer, 0)
        step_on_own_data(model, optimizer, 1)


def two_optimizers_of_one_name() -> None:
    a, b = nn.Linear(6, 3), nn.Linear(6, 3)
    # Each optimizer alone would work.
    optimizers = [distributed(model, "one name") for model in (a, b)]
    for model, optimizer in zip((a, b), optimizers):
        step_on_own_data(model, optimizer, 0)
    named = [distributed(model, name) for model, name in ((a, "a"), (b, "b"))]
    torch.manual_seed(tw.rank())
    x = torch.randn(4, 6)
    (a(x).square().mean() + b(x).abs().mean()).backward()
    for model, optimizer in zip((a, b), named):
        optimizer.step()
        same_everywhere(model, "two models in one backward")


def saved_and_loaded() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "saved", torch.optim.Adam)
    for step in range(2):
        step_on_own_data(model, optimizer, step)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    for step in range(2, 4):
        step_on_own_data(model, optimizer, step)
    wanted = copy.deepcopy(model.state_dict())
    file.seek(0)
    of_model, of_optimizer = torch.load(file)
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    for step in range(2, 4):
        step_on_own_data(model, optimizer, step)
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted[name])


class _OwnSgd(torch.optim.SGD):
    """A program's own optimizer, whose methods take less than those of torch's."""

    def zero_grad(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


def optimizers_of_a_program() -> None:
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)  # From now on torch hooks SGD.step, too.
    for overlaps in (False, True):
        model = two_layers()
        tw.broadcast_parameters(model.state_dict())
        optimizer = tw.DistributedOptimizer(
            _OwnSgd(model.parameters(), lr=np.float64(0.1)),  # type: ignore[arg-type]
            model.named_parameters(),
            name=f"own.{overlaps}",
            overlap_forward=model if overlaps else None,
        )
        for step in range(3):
            step_on_own_data(model, optimizer, step)
        assert optimizer._talweg.exchange.steps == 3  # type: ignore[attr-defined]


def state_with_numbers_of_numpy() -> None:
    model = nn.Linear(6, 3)
    rate = np.float64(0.1 * (tw.rank() + 1))
    optimizer = distributed(model, "numpy", lambda given, lr: torch.optim.SGD(given, lr=rate))
    tw.broadcast_optimizer_state(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1
    with optimizer.join():  # type: ignore[attr-defined]
        for _ in range(1 + tw.rank()):
            optimizer.zero_grad()
            model(torch.full((2, 6), float(tw.rank()))).square().mean().backward()
            optimizer.step()
    same_everywhere(model, "numpy")


def _averaged_backward(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Adds averages to `.grad`, and checks them."""
    torch.manual_seed(100 * step + tw.rank())
    before = [0.0 if p.grad is None else p.grad.clone() for p in model.parameters()]
    x = torch.randn(4, 160)
    own = torch.autograd.grad(model(x).square().mean(), tuple(model.parameters()))
    model(x).square().mean().backward()
    for i, (parameter, earlier, gradient) in enumerate(zip(model.parameters(), before, own)):
        wanted = tw.push_pull(earlier + gradient, name=f"wanted.{i}")
        assert parameter.grad is not None and torch.equal(parameter.grad, wanted), (step, i)


def gradients_that_are_kept() -> None:
    """Gradients are kept after their step: whole, in part, and through another tensor."""
    model = nn.Sequential(nn.Linear(160, 160), nn.Linear(160, 130))
    optimizer = distributed(model, "kept")
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(8):
        optimizer.zero_grad()
        _averaged_backward(model, optimizer, step)
        gradient = model[0].weight.grad
        assert gradient is not None
        if step in (1, 2):
            kept.append((gradient, gradient.clone()))
        if step == 4 + tw.rank():
            part = model[1].weight.grad
            assert part is not None
            part = part.detach()[3:, 5:]
            kept.append((part, part.clone()))
        optimizer.step()
        same_everywhere(model, f"kept {step}")
        for tensor, values in kept:
            assert torch.equal(tensor, values), f"step {step} wrote over a gradient of before"
    kept[0][0].fill_(1)  # Nobody else has this memory.
    optimizer.zero_grad()
    _averaged_backward(model, optimizer, 8)


def gradients_that_stay() -> None:
    """Gradients are accumulated onto averages, and onto zeros."""
    model = nn.Linear(160, 160)
    optimizer = distributed(model, "stay")
    for step in range(9):
        if step % 3 == 0:
            optimizer.zero_grad()
        elif step % 3 == 1:
            optimizer.zero_grad(set_to_none=False)
        _averaged_backward(model, optimizer, step)
        optimizer.step()
        same_everywhere(model, f"stay {step}")


def a_second_backward_pass() -> None:
    """It adds to the averages, also where a rank uses a parameter in the first pass alone."""
    used, once = (nn.Parameter(torch.zeros(200, 100)) for _ in range(2))
    named = [("used", used), ("once", once)]
    optimizer = tw.DistributedOptimizer(torch.optim.SGD([used, once]), named, name="second")
    for _ in range(2):
        optimizer.zero_grad()
        (used.sum() + once.sum() * 8).backward()
        (used.sum() + once.sum() * (4 if tw.rank() == 0 else 0)).backward()
        used.sum().backward()  # Nobody uses the other one.
        if tw.rank() == 0:
            (used + once).sum().backward()
        else:
            used.sum().backward()
        assert used.grad is not None and (used.grad == 4).all(), used.grad
        wanted = 8 + 5 / tw.size()
        assert once.grad is not None and torch.allclose(once.grad, torch.tensor(wanted)), once.grad
        optimizer.step()


def hooks_that_change_gradients() -> None:
    """Whether a program registers them before or after DistributedOptimizer()."""

    def double(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(2)

    for count in (4, 300 * 300):
        first, second, third = parameters = [nn.Parameter(torch.ones(count)) for _ in range(3)]
        named = [(str(i), parameter) for i, parameter in enumerate(parameters)]
        first.register_post_accumulate_grad_hook(double)
        optimizer: Any = tw.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=0.1), named, name=f"hooks.{count}"
        )
        second.register_post_accumulate_grad_hook(double)
        for step in range(4):
            if step == 2:
                third.register_post_accumulate_grad_hook(double)
            optimizer.zero_grad()
            (sum(each.sum() for each in parameters) * (tw.rank() + 1)).backward()
            for parameter in (first, second, *[third] * (step >= 2)):
                assert parameter.grad is not None
                assert (parameter.grad == tw.size() + 1).all(), (count, step, parameter.grad)
            optimizer.step()


def distributed_anew_with_more_parameters() -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    tw.broadcast_parameters(model.state_dict())
    tw.DistributedOptimizer(optimizer, model[0].named_parameters(), name="more")
    step_on_own_data(model[0], optimizer, 0)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    step_on_own_data(model, optimizer, 1)
    for _ in range(2):
        tw.DistributedOptimizer(optimizer, model.named_parameters(), name="more")
        for step in (2, 3):
            step_on_own_data(model, optimizer, step)


def unused_gradients_that_are_replaced() -> None:
    """A program keeps gradients as zeros, and clips out of place. No rank uses one of them."""
    model, unused = two_layers(), nn.Parameter(torch.ones(4))
    named = [*model.named_parameters(), ("unused", unused)]
    tw.broadcast_parameters(named)
    sgd = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    optimizer: Any = tw.DistributedOptimizer(sgd, named, name="replaced")
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        loss = model(torch.full((2, 6), float(tw.rank()))).square().mean()
        (loss + unused.sum() if step == 0 else loss).backward()
        for _, parameter in named:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clamp(-1, 1)
        optimizer.step()
        same_everywhere(model, f"replaced, step {step}")


def gradients_in_a_forked_child() -> None:
    """A forked child may read gradients, as a data loader's worker might."""
    model = nn.Linear(160, 160)
    optimizer = distributed(model, "forked")
    _averaged_backward(model, optimizer, 0)
    gradient = model.weight.grad
    assert gradient is not None
    values = gradient.clone()
    pid = os.fork()
    if pid == 0:
        gradient.zero_()
        del gradient
        optimizer.zero_grad(set_to_none=False)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.equal(gradient, values)


def memory_formats() -> None:
    """The elements of gradients lie in different orders at the ranks."""
    model = nn.Conv2d(3, 4, 3)
    optimizer = distributed(model, "formats")
    if tw.rank() == 0:
        model.to(memory_format=torch.channels_last)
    for step in range(2):
        torch.manual_seed(100 * step + tw.rank())
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()
        same_everywhere(model, f"formats, step {step}")


def odd_parameters() -> None:
    """Some parameters have no elements, or no dimensions."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.none = nn.Parameter(torch.empty(0, 4))
            self.scalar = nn.Parameter(torch.ones(()))

    model = Odd()
    optimizer = distributed(model, "odd")
    (model.scalar * tw.rank() + model.none.sum()).backward()
    assert model.scalar.grad == (tw.size() - 1) / 2
    optimizer.step()
    same_everywhere(model, "odd")


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
        raise RuntimeError("no backward")


def _train_with_a_failure(name: str, failing: Callable[[], bool]) -> None:
    model = two_layers()
    optimizer = distributed(model, name)
    for step in range(4):
        torch.manual_seed(100 * step + tw.rank())
        optimizer.zero_grad()
        x = model[0](torch.randn(4, 6))
        if step == 1 and failing():
            x = _Fails.apply(x)
        try:
            model[1](x).square().mean().backward()
        except RuntimeError as error:
            assert "no backward" in str(error), error
            optimizer.synchronize()  # type: ignore[attr-defined]
        # The average is there when backward has ended, also after a failure.
        own = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        assert all(torch.equal(a, b) for a, b in zip(own, tw.broadcast_object(own)))
        optimizer.step()
        same_everywhere(model, f"step {step}")


def failed_backwards() -> None:
    _train_with_a_failure("failed", lambda: True)
    _train_with_a_failure("failed at one", lambda: tw.rank() == tw.size() - 1)


def a_failed_backward_that_was_not_told() -> None:
    model = two_layers()
    optimizer = distributed(model, "untold")
    model(torch.ones(4, 6)).sum().backward()  # In the first step gradients leave at its end.
    optimizer.step()
    for text in ("no backward", "synchronize()"):
        try:
            model[1](_Fails.apply(model[0](torch.ones(4, 6)))).sum().backward()
        except (RuntimeError, talweg.InvalidArgument) as error:
            assert text in str(error), error
        else:
            raise AssertionError("no error")
    optimizer.synchronize()  # type: ignore[attr-defined]


def broadcasts_of_any_dtype() -> None:
    last = tw.size() - 1
    state = {
        "complex": torch.full((2, 2), complex(tw.rank(), 1)),
        "transposed": torch.full((2, 3), complex(tw.rank(), 1)).t(),
        "short": torch.tensor(tw.rank(), dtype=torch.int16),
        "flag": torch.tensor([tw.rank() == last]),
        "number": torch.tensor(tw.rank()),
        "empty": torch.empty(0),
        "no tensor": tw.rank(),
    }
    tw.broadcast_parameters(state, last)
    assert (state["complex"] == complex(last, 1)).all()
    assert (state["transposed"] == complex(last, 1)).all()
    assert state["short"] == last and state["flag"].item() and state["number"] == last
    assert tw.broadcast(torch.tensor([tw.rank()], dtype=torch.int16), last).tolist() == [last]
    # Several models in one call have some names twice.
    a, b = nn.Linear(6, 3), nn.Linear(6, 3)
    tw.broadcast_parameters([*a.named_parameters(), *b.named_parameters()])
    for model in (a, b):
        same_everywhere(model, "names twice")


def views() -> None:
    """A push takes the elements that a view shows, and not those that lie in memory."""
    negative = torch._neg_view(torch.ones(3))
    assert (tw.push_pull(negative, average=False) == -tw.size()).all()
    tw.push_pull_inplace(negative, average=False)
    assert (negative == -tw.size()).all()
    imaginary = torch.full((4,), complex(1, tw.rank() + 1)).conj().imag
    wanted = -tw.size() * (tw.size() + 1) / 2
    assert (tw.push_pull(imaginary, average=False) == wanted).all()


def autograd_sees_changes() -> None:
    if not hasattr(torch.autograd.graph, "increment_version"):
        return
    for change in (
        lambda tensor: tw.push_pull_inplace(tensor),
        lambda tensor: tw.synchronize(tw.push_pull_async_inplace(tensor)),
        lambda tensor: tw.broadcast_(tensor, 0),
    ):
        saved = torch.ones(3, requires_grad=True) * 2
        loss = (saved * saved).sum()
        change(saved.detach())
        try:
            loss.backward()
        except RuntimeError as error:
            assert "inplace" in str(error), error
        else:
            raise AssertionError("autograd used a tensor that was changed")


CASES = [
    frozen_then_thawed,
    parameters_that_are_added,
    shared_parameters,
    another_dtype,
    complex_parameters,
    an_optimizer_for_the_same_parameters,
    two_optimizers_of_one_name,
    saved_and_loaded,
    optimizers_of_a_program,
    state_with_numbers_of_numpy,
    gradients_that_are_kept,
    gradients_that_stay,
    a_second_backward_pass,
    hooks_that_change_gradients,
    distributed_anew_with_more_parameters,
    unused_gradients_that_are_replaced,
    gradients_in_a_forked_child,
    memory_formats,
    odd_parameters,
    failed_backwards,
    a_failed_backward_that_was_not_told,
    broadcasts_of_any_dtype,
    views,
    autograd_sees_changes,
]


def main() -> int:
    torch.set_num_threads(1)
    tw.init()
    if "in_place" in sys.argv[1:]:
        _in_place.BYTES_MIN = 1
    named = [case for case in (thawed_at_one_rank,) if case.__name__ in sys.argv[1:]]
    run_cases(*(named or CASES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
