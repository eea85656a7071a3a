# SPDX-License-Identifier: Apache-2.0
"""One rank of forward_overlap_test.py. The next forward pass makes its steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import talweg
import talweg.torch as tw
import torch
from talweg.torch import _averager
from torch import nn

STEPS = 6


class Shortcut(nn.Module):
    """Calls its layer in training. Otherwise it reads the layer's weight, as fused layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if self.training else x @ self.layer.weight.t()


class Net(nn.Module):
    """Has layers that are called, tied, used without a call, and used only in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)  # It reads out_proj.weight.
        self.scale = nn.Parameter(torch.ones(8))
        self.hidden = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.shortcut = Shortcut()
        self.sometimes = nn.Linear(8, 8)
        self.never = nn.Linear(3, 3)

    def forward(self, tokens: torch.Tensor, with_sometimes: bool) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0] * self.scale
        x = self.shortcut(self.hidden(x))
        if with_sometimes:
            x = self.sometimes(x)
        return x @ self.embed.weight.t()


Step = Callable[[Any, nn.Module, int], None]


def train(
    name: str,
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    overlap: bool,
    passes: int = 1,
    before_step: Step | None = None,
) -> dict[str, torch.Tensor]:
    """Trains Net for a few steps. Returns its weights, and its output in the middle."""
    torch.manual_seed(5)
    model = Net()
    optimizer = tw.DistributedOptimizer(
        make(list(model.parameters())),
        model.named_parameters(),
        backward_passes_per_step=passes,
        name=f"{name}.{'overlapped' if overlap else 'plain'}",
        overlap_forward=model if overlap else None,
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = torch.Generator().manual_seed(100 + tw.rank())
    seen: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for _ in range(passes):
            tokens = torch.randint(0, 11, (4, 5), generator=data)
            # Ranks use different layers. A rank that does not use a layer gets the others' average.
            logits = model(tokens, with_sometimes=step % 3 == 0 or (step + tw.rank()) % 2 == 0)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()) / passes
            loss.backward()
        if before_step is not None:
            before_step(optimizer, model, step)
        optimizer.step()
        schedule.step()
        if step == 2:
            model.eval()
            with torch.inference_mode():
                seen["evaluation"] = model(torch.arange(5).reshape(1, 5), True)
            model.train()
    optimizer.synchronize()
    return {**seen, **model.state_dict()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    for key, value in left.items():
        assert torch.equal(value, right[key]), key


def weights_are_those_of_plain_steps() -> None:
    optimizers: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
        "adamw": lambda p: torch.optim.AdamW(
            [{"params": p[:4], "lr": 1e-2}, {"params": p[4:], "lr": 1e-3}]
        ),
    }
    for name, make in optimizers.items():
        for passes in (1, 2):
            plain = train(f"{name}.{passes}", make, False, passes)
            same(plain, train(f"{name}.{passes}", make, True, passes))


def clipping_after_synchronize() -> None:
    def clip(optimizer: Any, model: nn.Module, step: int) -> None:
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    same(train("clip", make, False, 1, clip), train("clip", make, True, 1, clip))


def layers_in_a_row() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    name = tw.broadcast_object(f"row.{id(model)}")
    return model, tw.DistributedOptimizer(
        plain, model.named_parameters(), name=name, overlap_forward=model
    )


def forward_waits_layer_by_layer() -> None:
    model, optimizer = layers_in_a_row()
    events: list[str] = []
    finish = _averager.finish

    def logged(client: Any, handle: Any, timeout_s: float | None = None) -> torch.Tensor:
        events.append(f"take {handle.name.split('.', 2)[-1]}")
        return finish(client, handle, timeout_s)

    for place, layer in enumerate(model):
        layer.register_forward_pre_hook(lambda *_, place=place: events.append(f"forward {place}"))
    model(torch.ones(2, 4)).sum().backward()
    events.clear()
    _averager.finish = logged
    try:
        optimizer.step()
        model(torch.ones(2, 4)).sum()
    finally:
        _averager.finish = finish
    events = [event for event in events if not event.endswith("used")]
    wanted = [
        f"{what} {place}{'.weight' if what == 'take' else ''}"
        for place in range(3)
        for what in ("take", "forward")
    ]
    assert [event.replace("gradient.", "") for event in events] == wanted, events


def changed_gradients_are_refused() -> None:
    model, optimizer = layers_in_a_row()
    model(torch.ones(2, 4)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    try:
        optimizer.step()
    except talweg.InvalidArgument as error:
        assert ".weight'" in str(error) and "synchronize()" in str(error), error
    else:
        raise AssertionError("clipping what is under way went unnoticed")
    # The rounds are still under way after the error, and synchronize() gives the averages.
    optimizer.synchronize()
    gradient = model[2].weight.grad
    assert gradient is not None
    assert torch.equal(gradient, tw.broadcast(gradient, name="compare"))
    parameters = [nn.Parameter(torch.ones(2))]
    lbfgs = torch.optim.LBFGS(parameters)
    for _ in range(2):
        try:
            tw.DistributedOptimizer(lbfgs, overlap_forward=nn.Linear(1, 1))
        except talweg.InvalidArgument as error:
            assert "LBFGS" in str(error), error
        else:
            raise AssertionError("LBFGS was taken")
    assert type(lbfgs) is torch.optim.LBFGS
    tw.DistributedOptimizer(lbfgs, name="lbfgs")


def two_passes_before_a_step() -> None:
    model, optimizer = layers_in_a_row()
    for step in range(3):
        optimizer.zero_grad()
        inputs = torch.full((2, 4), 1.0 + tw.rank())
        model(inputs).sum().backward()
        try:
            model(inputs).sum().backward()
        except talweg.InvalidArgument as error:
            assert "call synchronize() between two backward passes" in str(error), (step, error)
        else:
            raise AssertionError("a second pass was taken")
        optimizer.synchronize()
        model(inputs).sum().backward()
        optimizer.step()
    optimizer.synchronize_parameters()
    for i, parameter in enumerate(model.parameters()):
        assert torch.equal(parameter, tw.broadcast(parameter.detach(), name=f"passes.{i}")), i


def batches_that_are_left_out() -> None:
    model, optimizer = layers_in_a_row()
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 4), 1.0 + tw.rank())).sum().backward()
        if step % 2 == 0:
            continue  # The step is left out while its averages are under way.
        optimizer.step()
    optimizer.synchronize()
    for key, value in model.state_dict().items():
        assert torch.equal(value, tw.broadcast(value, name=f"left out.{key}")), key


def modules_that_are_left_out() -> None:
    """Some ranks leave out modules in a pass, and then leave out its batch, too."""
    model, optimizer = layers_in_a_row()
    x = torch.full((2, 4), 1.0 + tw.rank())
    for step in range(4):
        optimizer.zero_grad()
        if step == 1 and tw.rank() == 0:
            model[1](model[0](x)).sum().backward()
            continue
        model(x).sum().backward()
        if step != 1:
            optimizer.step()
    optimizer.synchronize()
    for key, value in model.state_dict().items():
        assert torch.equal(value, tw.broadcast(value, name=f"skipped.{key}")), key


def schedulers_that_come_first() -> None:
    model = nn.Linear(4, 4)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.ExponentialLR(plain, 0.9)
    try:
        tw.DistributedOptimizer(plain, overlap_forward=model)
    except talweg.InvalidArgument as error:
        assert "schedulers after DistributedOptimizer()" in str(error), error
    else:
        raise AssertionError("a step() that nobody would call was taken")
    assert not model.weight._post_accumulate_grad_hooks  # Talweg does not watch its gradients.


def state_and_join_see_whole_steps() -> None:
    model, optimizer = layers_in_a_row()
    calls: list[str] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    with optimizer.join():
        for _ in range(1 + tw.rank()):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert len(calls) == 1 + tw.rank(), calls
    for key, value in model.state_dict().items():
        assert torch.equal(value, tw.broadcast(value, name=f"join.{key}")), key
    before = model[0].weight.detach().clone()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert not torch.equal(model[0].weight, before), "state_dict() came before the step"
    optimizer.load_state_dict(state)


def main() -> int:
    torch.set_num_threads(1)
    tw.init()
    for check in (
        weights_are_those_of_plain_steps,
        clipping_after_synchronize,
        forward_waits_layer_by_layer,
        changed_gradients_are_refused,
        two_passes_before_a_step,
        batches_that_are_left_out,
        modules_that_are_left_out,
        schedulers_that_come_first,
        state_and_join_see_whole_steps,
    ):
        print(check.__name__, flush=True)
        check()
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
