# SPDX-License-Identifier: Apache-2.0
"""One rank of torch_test.py. Steps apply averages, however their gradients came about."""

from __future__ import annotations

import copy
import sys
from functools import partial
from typing import Any
from unittest import mock

import talweg
import talweg.torch as tw
import torch
from cases import run_cases
from expected_errors import expect
from talweg.torch import _averager
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import distributed, same_everywhere, step_on_own_data


def closures() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "closure", torch.optim.LBFGS)
    torch.manual_seed(tw.rank())
    x = torch.randn(8, 6)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        # With its own loss each rank would take other steps.
        return float(tw.push_pull(loss.detach()))

    for step in range(2):
        optimizer.step(closure)
        same_everywhere(model, f"closure, step {step}")


def _averaged_by_hand(model: nn.Module, name: str) -> list[torch.Tensor]:
    """Returns the averages of the gradients of plain copies."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return [tw.push_pull(g, name=f"{name}.{i}") for i, g in enumerate(gradients)]


def _moved_by(model: nn.Module, before: nn.Module, gradients: list[torch.Tensor]) -> None:
    for now, then, gradient in zip(model.parameters(), before.parameters(), gradients):
        assert torch.allclose(now, then - 0.1 * gradient, atol=1e-6)


def _check_closures(name: str, passes: int) -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, name, backward_passes_per_step=passes)
    x = torch.empty(8, 6)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for step in range(2):
        torch.manual_seed(10 * step + tw.rank())
        x.normal_()
        plain = copy.deepcopy(model)
        plain.zero_grad()
        plain(x).square().mean().backward()
        loss = optimizer.step(closure) if step == 0 else optimizer.step(closure=closure)
        assert loss is not None
        _moved_by(model, plain, _averaged_by_hand(plain, f"{name}.wanted"))
        same_everywhere(model, f"{name}, step {step}")


def closures_of_few_passes() -> None:
    """A closure may make few passes, so gradients are not averaged yet at the step."""
    _check_closures("closure.enough", 1)
    _check_closures("closure.few", 2)


def assigned_gradients() -> None:
    """Gradients are assigned by hand, by one rank, or before the optimizer, and some only stay."""
    model = nn.Linear(6, 3)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(tw.rank()))
    optimizer = distributed(model, "assigned")
    mean = (tw.size() - 1) / 2
    for step in range(4):
        plain = copy.deepcopy(model)
        optimizer.step()
        _moved_by(model, plain, [torch.full_like(p, mean) for p in model.parameters()])
        optimizer.zero_grad()
        losses = model(torch.ones(2, 6)).sum()
        weight, bias = torch.autograd.grad(losses, (model.weight, model.bias))
        if step == 1 and tw.rank() != 0:
            continue  # The zeros of other ranks count, too.
        share = tw.size() if step == 1 else 1
        at = mean if step == 1 else float(tw.rank())
        model.weight.grad = torch.full_like(weight, at * share)
        model.bias.grad = torch.full_like(bias, at * share)
    # A gradient that stays is unchanged, while other gradients are averaged.
    optimizer.zero_grad()
    other = nn.Linear(6, 3)
    optimizer.add_param_group({"params": list(other.parameters()), "lr": 0.1})
    model(torch.full((2, 6), 1.0 + tw.rank())).sum().backward()
    optimizer.step()
    kept = model.weight.grad
    assert kept is not None
    values = kept.clone()
    other(torch.ones(2, 6)).sum().backward()
    assert model.weight.grad is kept and torch.equal(kept, values)


def batches_that_are_left_out() -> None:
    """The program drops the first of several passes, and a whole step."""
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "left out", backward_passes_per_step=2)
    for step in range(3):
        for dropped in (1, 2):
            optimizer.zero_grad()
            for _ in range(dropped):
                model(torch.randn(2, 6)).sum().backward()
        optimizer.zero_grad()
        plain = copy.deepcopy(model)
        for _ in range(2):
            x = torch.full((2, 6), 1.0 + tw.rank() + step)
            model(x).square().mean().backward()
            plain(x).square().mean().backward()
        wanted = _averaged_by_hand(plain, "left out.wanted")
        for parameter, gradient in zip(model.parameters(), wanted):
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad, gradient, atol=1e-6), step
        optimizer.step()
        same_everywhere(model, f"left out, step {step}")


def backwards_within_backwards() -> None:
    """The end of an inner backward does not end the pass, and does not count as a pass."""
    if not hasattr(torch._C, "_current_autograd_node"):
        return
    first, second, third = (nn.Linear(6, 6) for _ in range(3))
    model = nn.Sequential(first, second, third)
    optimizer = distributed(model, "nested", backward_passes_per_step=2)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(third, x, use_reentrant=True)

    for step in range(3):
        plain = copy.deepcopy(model)
        plain.zero_grad()
        optimizer.zero_grad()
        for number in range(2):
            torch.manual_seed(100 * step + 10 * number + tw.rank())
            x = torch.randn(4, 6)
            plain(x).square().mean().backward()
            # The last layer's gradients come first, from a backward within the other layers'
            # backward, or one level deeper.
            y = second(first(x))
            y = checkpoint(inner, y, use_reentrant=True) if step == 0 else inner(y)
            y.square().mean().backward()
            alone = [p.grad for p in plain.parameters()]
            wanted = alone if number == 0 else _averaged_by_hand(plain, "nested.wanted")
            for parameter, gradient in zip(model.parameters(), wanted):
                assert parameter.grad is not None and gradient is not None
                assert torch.allclose(parameter.grad, gradient, atol=1e-6), (step, number)
        optimizer.step()
        same_everywhere(model, f"nested, step {step}")


def schedulers() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "schedulers")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for step in range(3):
        step_on_own_data(model, optimizer, step)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 0.1


def clipped_under_a_scaler() -> None:
    if not hasattr(torch.amp, "GradScaler"):  # Before torch 2.3 only CUDA tensors can be scaled.
        return
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "unscaled")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        torch.manual_seed(100 * step + tw.rank())
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 6)).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        same_everywhere(model, f"scaled step {step}")


def accumulated_gradients() -> None:
    """A last step may have fewer backward passes, and a step more passes than were announced."""
    for name, passes in (("three", 3), ("one", 1)):
        model = nn.Linear(6, 3)
        optimizer = distributed(model, f"accumulate.{name}", backward_passes_per_step=passes)
        for step, count in enumerate((3, 2)):
            optimizer.zero_grad()
            wanted = torch.zeros(3, 6)
            for number in range(count):
                for rank in range(tw.size()):
                    torch.manual_seed(100 * step + 10 * number + rank)
                    x = torch.randn(4, 6)
                    if rank == tw.rank():
                        own = x
                    alone = copy.deepcopy(model).requires_grad_(True)
                    alone.zero_grad()
                    alone(x).square().mean().backward()
                    assert alone.weight.grad is not None
                    wanted += alone.weight.grad / tw.size()
                model(own).square().mean().backward()
            optimizer.synchronize()  # type: ignore[attr-defined]
            assert torch.allclose(model.weight.grad, wanted, atol=1e-6), (name, step)
            optimizer.step()
            same_everywhere(model, f"accumulated, step {step}")


def optimizers_that_are_left_out() -> None:
    """Some ranks leave optimizers out of a pass. Gradients of several come in any order."""
    a, b = nn.Linear(6, 6), nn.Linear(6, 3)
    optimizers = [distributed(a, "left out a"), distributed(b, "left out b")]
    for step in range(3):
        torch.manual_seed(10 * step + tw.rank())
        x = torch.randn(4, 6)
        loss = b(x).square().mean()
        if tw.rank() != step % tw.size():
            loss = loss + a(x).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer, model in zip(optimizers, (a, b)):
            optimizer.step()
            same_everywhere(model, f"left out, step {step}")


def gradients_that_come_too_late() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    optimizer = distributed(model, "late")
    model[1](torch.ones(2, 6)).sum().backward()
    model[1].weight.grad = torch.ones(3, 6)  # It changes an average, as clipping may.
    model[0].weight.grad = torch.ones(6, 6)
    expect(talweg.InvalidArgument, "'0.weight' was assigned after backward()", optimizer.step)
    model[0].weight.grad = None
    optimizer.step()


def gradients_of_one_element_for_all() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "expanded")
    value = torch.tensor(float(tw.rank()))
    model.weight.grad, model.bias.grad = value.expand(3, 6), value.expand(3)
    before = copy.deepcopy(model)
    optimizer.step()
    mean = (tw.size() - 1) / 2
    _moved_by(model, before, [torch.full_like(p, mean) for p in model.parameters()])


def closures_that_assign() -> None:
    """Closures assign gradients as often as an optimizer calls them."""
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "assigning", torch.optim.LBFGS)
    torch.manual_seed(tw.rank())
    x = torch.randn(8, 6)

    def closure() -> float:
        loss = model(x).square().mean()
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            parameter.grad = gradient
        return float(tw.push_pull(loss.detach()))

    optimizer.step(closure)
    same_everywhere(model, "closures that assign")


class _Search(torch.optim.Optimizer):
    """Halves its step until the loss is smaller."""

    def __init__(self, parameters: Any, lr: float, calls_backward: bool = False) -> None:
        super().__init__(parameters, {"lr": lr})
        self.calls_backward = calls_backward
        self.evaluations = 0

    def _evaluate(self, closure: Any) -> Any:
        self.evaluations += 1
        loss = closure()
        if self.calls_backward:
            loss.backward()
        return loss

    def step(self, closure: Any = None) -> Any:
        first = self._evaluate(closure)
        parameters = [p for group in self.param_groups for p in group["params"]]
        starts = [(p, p.detach().clone(), p.grad.clone()) for p in parameters]
        rate = 1.0
        while True:
            with torch.no_grad():
                for parameter, start, gradient in starts:
                    parameter.copy_(start - rate * gradient)
            loss = self._evaluate(closure)
            if float(loss) < float(first) or rate < 1e-6:
                return loss
            rate /= 2


def line_searches() -> None:
    """An optimizer decides by what its closure returns, which differs from rank to rank."""
    kinds = {
        "tensor": lambda loss: loss,
        "float": float,
        "numpy": lambda loss: loss.detach().numpy()[()],
    }
    for kind, returned in kinds.items():
        model = nn.Linear(6, 3)
        optimizer = distributed(model, f"search.{kind}", _Search)
        torch.manual_seed(tw.rank())
        x = torch.randn(8, 6) * (1 + 5 * tw.rank())

        def closure(
            model: Any = model, x: Any = x, optimizer: Any = optimizer, returned: Any = returned
        ) -> Any:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            return returned(loss)

        for step in range(3):
            loss = float(optimizer.step(closure))
            same_everywhere(model, f"{kind}, step {step}")
            counts = tw.all_gather_object((optimizer.evaluations, loss))  # type: ignore[attr-defined]
            assert len(set(counts)) == 1, counts


def line_searches_of_uneven_batches() -> None:
    """Each rank has another number of batches, and rank 0 has none."""
    makes: dict[str, Any] = {
        "search": _Search,
        "LBFGS": partial(torch.optim.LBFGS, line_search_fn="strong_wolfe"),
    }
    for name, make in makes.items():
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.3)
        optimizer = distributed(model, f"uneven.{name}", make)
        torch.manual_seed(tw.rank())
        x = torch.randn(16, 3)
        y = (1 + 50 * tw.rank()) * x.sin().sum(1, keepdim=True)
        evaluations: list[float] = []

        def closure(
            model: Any = model, optimizer: Any = optimizer, x: Any = x, y: Any = y
        ) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        counts, weights = [], []
        with optimizer.join():  # type: ignore[attr-defined]
            for _ in range(2 * tw.rank()):
                evaluations.append(float(optimizer.step(closure)))
                counts.append(len(evaluations))
                weights.append(model[0].weight.detach().clone())
        same_everywhere(model, f"{name}, uneven")
        told = tw.all_gather_object((counts, evaluations, weights))
        most = told[-1]
        for rank, (its_counts, losses, its_weights) in enumerate(told):
            assert len(its_counts) == 2 * rank, told
            assert losses == most[1][: len(losses)], (rank, losses, most[1])
            assert all(map(torch.equal, its_weights, most[2])), (rank, name)


def losses_of_which_an_optimizer_makes_the_backward() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "search.backward", lambda p, lr: _Search(p, lr, True))
    x = torch.full((8, 6), 1.0 + tw.rank())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        return (model(x) - 1).square().mean()

    with torch.enable_grad():
        optimizer.step(closure)
    same_everywhere(model, "the optimizer's own backward")


def losses_that_stay_as_they_are() -> None:
    """torch's optimizers only return them, and not every closure returns one number."""
    own = float(tw.rank())
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = distributed(nn.Linear(2, 2), f"own.{kind.__name__}", kind)
        assert optimizer.step(lambda: own) == own
    for number, value in enumerate((None, "text", torch.zeros(2), True)):
        other = distributed(nn.Linear(6, 3), f"others.{number}", _Once)
        assert other.step(lambda value=value: value) is value  # type: ignore[misc]
    once = distributed(nn.Linear(6, 3), "averaged", _Once)
    assert once.step(lambda: own) == (tw.size() - 1) / 2
    with once.join():  # type: ignore[attr-defined]
        assert once.step(lambda: own) == (tw.size() - 1) / 2
    with other.join():  # type: ignore[attr-defined]
        assert other.step(lambda: True) is True
    late = distributed(nn.Linear(2, 2), "averaged.before", _Once)
    with late.join():  # type: ignore[attr-defined]
        late.synchronize()  # type: ignore[attr-defined]
        assert late.step(lambda: own) == own  # The ranks have averaged their gradients before.
    assert once.step(lambda: own) == (tw.size() - 1) / 2


class _Once(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class _Scaled(torch.optim.SGD):
    """An optimizer whose step() takes more than a closure, and has another name for it."""

    def step(self, evaluate: Any, scale: float = 0.0) -> Any:  # type: ignore[override]
        loss = evaluate()
        assert scale == 0.5
        super().step()
        return loss


class _Reported(torch.optim.SGD):
    def step(self, loss: float) -> None:  # type: ignore[override]
        assert loss == 0.25
        super().step()


def steps_of_other_arguments() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "scaled", _Scaled, backward_passes_per_step=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.full((2, 6), 1.0 + tw.rank())).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure, 0.5) is not None  # type: ignore[call-arg]
    same_everywhere(model, "another argument")
    # This optimizer's step() gets no closure, but another argument in its place.
    other = distributed(nn.Linear(6, 3), "no closure", _Reported)
    other.step(0.25)  # type: ignore[arg-type]


def waits_that_are_interrupted() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "interrupted", backward_passes_per_step=2)
    before = copy.deepcopy(model)
    before.zero_grad()
    x = torch.full((2, 6), 1.0 + tw.rank())
    before(x).square().sum().backward()
    model(x).square().sum().backward()
    finish, calls = _averager.finish, 0

    def interrupted(client: Any, handle: Any, timeout_s: float | None = None) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return finish(client, handle, timeout_s)

    with mock.patch.object(_averager, "finish", interrupted):
        expect(KeyboardInterrupt, "", optimizer.step)
    optimizer.step()
    _moved_by(model, before, _averaged_by_hand(before, "interrupted.wanted"))


def numbers_of_passes_that_change() -> None:
    model = nn.Linear(6, 3)
    optimizer = distributed(model, "changing")
    for passes in (1, 2, 1):
        optimizer.set_backward_passes_per_step(passes)  # type: ignore[attr-defined]
        optimizer.zero_grad()
        for number in range(passes):
            model(torch.full((2, 6), 1.0 + tw.rank() + number)).sum().backward()
        mean = sum(1.0 + n for n in range(passes)) + passes * (tw.size() - 1) / 2
        assert model.weight.grad is not None
        assert torch.allclose(model.weight.grad, torch.full((3, 6), 2 * mean))
        optimizer.step()
    expect(
        talweg.InvalidArgument,
        "backward_passes_per_step is 0",
        optimizer.set_backward_passes_per_step,  # type: ignore[attr-defined]
        0,
    )


def main() -> int:
    torch.set_num_threads(1)
    tw.init()
    run_cases(
        closures,
        closures_of_few_passes,
        assigned_gradients,
        batches_that_are_left_out,
        backwards_within_backwards,
        schedulers,
        clipped_under_a_scaler,
        accumulated_gradients,
        numbers_of_passes_that_change,
        optimizers_that_are_left_out,
        gradients_that_come_too_late,
        gradients_of_one_element_for_all,
        closures_that_assign,
        line_searches,
        line_searches_of_uneven_batches,
        losses_of_which_an_optimizer_makes_the_backward,
        losses_that_stay_as_they_are,
        steps_of_other_arguments,
        waits_that_are_interrupted,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
