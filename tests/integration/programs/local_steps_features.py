# SPDX-License-Identifier: Apache-2.0
"""One rank of local_steps_test.py: what LocalSGD and DiLoCo do with all that programs have."""

from __future__ import annotations

import copy
import io
import os
import pickle
from typing import Any

import talweg
import talweg.byteps.torch as bps
import talweg.horovod.torch as hvd
import talweg.torch as tw
import torch
from cases import run_cases
from expected_errors import expect
from torch import nn
from torch_models import bits_of as _bits
from torch_models import local_step as _step
from torch_models import same_everywhere, two_layers
from torch_models import sgd_of as _sgd

# How far what is flushed may be from the mean: a level of 127 of how far parameters have moved.
_IS_ROUNDED = os.environ.get("TALWEG_ENCODING") == "int8"
_FLUSHED_WITHIN = 5e-3 if _IS_ROUNDED else 1e-6


def _differ(model: nn.Module, what: str) -> None:
    own = [p.detach().float().numpy().tobytes() for p in model.parameters()]
    everyone = tw.all_gather_object(own)
    assert all(other != everyone[0] for other in everyone[1:]), f"ranks are equal: {what}"


def equal_beginnings() -> None:
    """Ranks that begin with other parameters and buffers take those of rank 0."""
    torch.manual_seed(tw.rank())
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model[1].running_mean.fill_(tw.rank())
    wanted = tw.broadcast_object(_bits(model))
    optimizer = tw.DiLoCo(model, _sgd(model, 0.0), every=3, name="beginnings")
    _step(model, optimizer, 0)
    assert _bits(model) == wanted
    _step(model, optimizer, 1)
    _step(model, optimizer, 2)
    same_everywhere(model, "beginnings")


def flushes() -> None:
    torch.manual_seed(1)
    ways: list[dict[str, Any]] = [{}, {"fragments": 2, "delay": 2, "mix": 0.5}]
    for arguments in ways:
        model = two_layers()
        optimizer = tw.DiLoCo(model, _sgd(model), 4, name=f"flush{len(arguments)}", **arguments)
        assert not optimizer.is_synchronized
        optimizer.flush()  # Ranks agree.
        assert optimizer.is_synchronized
        for step in range(11):
            _step(model, optimizer, step)
        _differ(model, "before flush()")
        assert not optimizer.is_synchronized
        optimizer.flush()
        same_everywhere(model, "after flush()")
        assert optimizer.is_synchronized
        before, bytes_before = _bits(model), tw.pushed_bytes()
        optimizer.flush()
        assert (_bits(model), tw.pushed_bytes()) == (before, bytes_before)
        with optimizer.global_parameters():
            assert _bits(model) == before
    with optimizer.global_parameters():
        expect(talweg.InvalidArgument, "within global_parameters()", _step, model, optimizer, 0)
        expect(talweg.InvalidArgument, "within global_parameters()", optimizer.flush)
    model = two_layers()
    optimizer = tw.DiLoCo(model, _sgd(model), 100, name="mean")  # A flush is no outer step.
    for step in range(3):
        _step(model, optimizer, step)
    means = [tw.push_pull(p.detach()) for p in model.parameters()]
    optimizer.flush()
    for parameter, mean in zip(model.parameters(), means):
        assert torch.allclose(parameter, mean, atol=_FLUSHED_WITHIN)


def buffers() -> None:
    for averages in (True, False):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        norm = model[1]
        name = f"buffers.{averages}"
        optimizer = tw.LocalSGD(model, _sgd(model), 4, average_buffers=averages, name=name)
        for step in range(3):
            _step(model, optimizer, step)
        # What the fourth step makes of them, at each rank.
        alone = copy.deepcopy(model)
        generator = torch.Generator().manual_seed(300 + tw.rank())
        alone(torch.randn(4, 6, generator=generator))
        own = [alone[1].running_mean, alone[1].running_var]
        means = [tw.push_pull(each.double()).float() for each in own]
        _step(model, optimizer, 3)
        wanted = means if averages else own
        assert torch.equal(norm.running_mean, wanted[0]) and torch.equal(
            norm.running_var, wanted[1]
        )
        assert int(norm.num_batches_tracked) == 4


def inner_state() -> None:
    for averages in (True, False):
        torch.manual_seed(1)
        model = two_layers()
        adam = torch.optim.AdamW(model.parameters(), lr=0.01)
        name = f"inner.{averages}"
        optimizer = tw.LocalSGD(model, adam, 3, average_state=averages, name=name)
        for step in range(3):
            _step(model, optimizer, step)
        state = [
            optimizer.state[p][k] for p in model.parameters() for k in ("exp_avg", "exp_avg_sq")
        ]
        everyone = tw.all_gather_object([each.numpy().tobytes() for each in state])
        assert averages == all(each == everyone[0] for each in everyone[1:]) or tw.size() == 1


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 3)
        self.other = nn.Linear(6, 3)
        self.use_other = True

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(inputs)
        return result + self.other(inputs) if self.use_other else result


def inner_state_that_some_lack() -> None:
    """What a rank has no state of yet becomes the mean of those that have it."""
    last = tw.size() - 1
    lacks = tw.rank() == last and tw.size() > 1
    torch.manual_seed(1)
    model = _Two()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = tw.LocalSGD(model, inner, 3, average_state=True, name="inner.lacks")
    for step in range(9):
        model.use_other = not lacks or step >= 4
        if step == 2:  # What the third step makes of it, at each rank.
            alone = copy.deepcopy(model)
            plain = torch.optim.AdamW(alone.parameters(), lr=0.01)
            plain.load_state_dict(copy.deepcopy(optimizer).state_dict())
            _step(alone, plain, step)
        _step(model, optimizer, step)
        if step == 2:
            assert (model.other.weight in optimizer.state) != lacks
            for parameter, own in zip(model.parameters(), alone.parameters()):
                mine = plain.state[own]["exp_avg"].double() if own in plain.state else None
                told = [each for each in tw.all_gather_object(mine) if each is not None]
                if parameter in optimizer.state:
                    mean = torch.stack(told).mean(0).float()
                    assert torch.allclose(optimizer.state[parameter]["exp_avg"], mean, atol=1e-7)
    same_everywhere(model, "inner state that some lack")
    state = [optimizer.state[p][k] for p in model.parameters() for k in ("exp_avg", "exp_avg_sq")]
    everyone = tw.all_gather_object([each.numpy().tobytes() for each in state])
    assert all(each == everyone[0] for each in everyone), "all have the state by now"


def short_types() -> None:
    """x0, D and the momentum are f32, so steps below a 16-bit number's precision add up."""
    for dtype in (torch.bfloat16, torch.float16):
        model = nn.Linear(6, 3).to(dtype)
        nn.init.constant_(model.weight, 1.0)
        nn.init.constant_(model.bias, 1.0)
        optimizer = tw.DiLoCo(
            model, _sgd(model, 1.0), 1, outer_lr=0.01, outer_momentum=0.0, name=f"short.{dtype}"
        )
        precision = torch.finfo(dtype).eps
        for _ in range(60):  # Each step moves x0 by a hundredth of a number's precision.
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, precision)
            optimizer.step()
        kept = optimizer.state_dict()["talweg_local"]["parameters"]["weight"]["x0"]
        assert kept.dtype == torch.float32
        assert torch.allclose(kept, torch.full_like(kept, 1 - 60 * 0.01 * precision), atol=1e-5)
        assert torch.equal(model.weight, kept.to(dtype))
        assert bool((model.weight < 1).all()), "what each step was short of is lost"
        same_everywhere(model, f"{dtype}")
    model = nn.Linear(6, 3).double()
    optimizer = tw.DiLoCo(model, _sgd(model), 2, name="double")
    for step in range(4):
        _step(model, optimizer, step)
    same_everywhere(model, "f64")
    kept = optimizer.state_dict()["talweg_local"]["parameters"]["weight"]["x0"]
    assert kept.dtype == torch.float64 and torch.equal(kept, model.weight)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(6, 2)
        self.late = nn.Parameter(torch.ones(6), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.tanh(self.first(inputs)) * self.late)
        return result


def tied_unused_and_frozen() -> None:
    torch.manual_seed(1)
    model = _Tied()
    unused, late = model.unused.weight.detach().clone(), model.late.detach().clone()
    optimizer = tw.DiLoCo(model, torch.optim.AdamW(model.parameters(), lr=0.01), 3, name="tied")
    for step in range(6):
        _step(model, optimizer, step)
    same_everywhere(model, "tied")
    assert model.first.weight is model.second.weight
    # Weight decay needs a gradient, so no rank has moved it.
    assert torch.equal(model.unused.weight, unused) and torch.equal(model.late, late)
    kept = optimizer.state_dict()["talweg_local"]["parameters"]
    assert sorted(kept) == ["first.weight", "unused.bias", "unused.weight"]
    model.late.requires_grad_()
    for step in range(6, 9):
        _step(model, optimizer, step)
    same_everywhere(model, "thawed")
    assert not torch.equal(model.late, late)
    if tw.rank() == tw.size() - 1:  # It is used at one rank alone.
        with torch.no_grad():
            model.unused.weight.add_(1.0)
    with torch.no_grad():
        model.late.requires_grad_(False)
    frozen = model.late.detach().clone()
    for step in range(9, 12):
        _step(model, optimizer, step)
    assert torch.equal(model.late, frozen), "an outer step has moved a frozen parameter"
    same_everywhere(model, "used at one rank")
    assert not torch.equal(model.unused.weight, unused)


def parameter_groups() -> None:
    torch.manual_seed(1)
    model = two_layers()
    inner = torch.optim.SGD(
        [{"params": model[0].weight, "lr": 0.1}, {"params": model[0].bias, "lr": 0.2}], momentum=0.9
    )
    optimizer = tw.LocalSGD(model, inner, 2, name="groups")
    assert isinstance(optimizer, torch.optim.SGD) and optimizer is inner
    last = model[1].weight.detach().clone()
    for step in range(2):
        _step(model, optimizer, step)
    assert torch.equal(model[1].weight, last)
    optimizer.add_param_group({"params": list(model[1].parameters()), "lr": 0.05})
    for step in range(2, 4):
        _step(model, optimizer, step)
    same_everywhere(model, "groups")
    assert not torch.equal(model[1].weight, last)
    plain = pickle.loads(pickle.dumps(optimizer))
    assert type(plain) is torch.optim.SGD and type(copy.deepcopy(optimizer)) is torch.optim.SGD


def schedulers() -> None:
    """A scheduler is made before or after. It sees an optimizer, and each step counts once."""
    for when in ("before", "after"):
        torch.manual_seed(1)
        model = two_layers()
        optimizer = _sgd(model)
        make = torch.optim.lr_scheduler.StepLR
        if when == "before":
            scheduler = make(optimizer, 2, 0.5)
        optimizer = tw.DiLoCo(model, optimizer, 4, name=f"schedule.{when}")
        if when == "after":
            scheduler = make(optimizer, 2, 0.5)
        calls: list[int] = []
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        for step in range(8):
            _step(model, optimizer, step)
            scheduler.step()
            assert optimizer.is_synchronized == (step % 4 == 3)
        assert len(calls) == 8
        assert abs(optimizer.param_groups[0]["lr"] - 0.1 * 0.5**4) < 1e-9
        same_everywhere(model, f"schedule.{when}")


def closures() -> None:
    torch.manual_seed(1)
    model = two_layers()
    optimizer = tw.LocalSGD(model, torch.optim.LBFGS(model.parameters(), lr=0.1), 2, name="lbfgs")
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(tw.rank()))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(inputs).square().mean()
        loss.backward()
        return loss

    for step in range(4):
        assert optimizer.step(closure).item() > 0
        assert optimizer.is_synchronized == (step % 2 == 1)
    same_everywhere(model, "lbfgs")


def gradient_scalers() -> None:
    """A step that the scaler skips at one rank counts at that rank, too."""
    if not hasattr(torch.amp, "GradScaler"):
        return  # Older torch has none for a CPU.
    for unscales in (False, True):
        torch.manual_seed(1)
        model, other = two_layers(), two_layers()
        other.load_state_dict(model.state_dict())
        name = f"scaler.{unscales}"
        optimizer = tw.LocalSGD(model, torch.optim.AdamW(model.parameters()), 3, name=name)
        scaler, other_scaler = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
        plain = torch.optim.AdamW(other.parameters())
        for step in range(3):
            for each, steps, scales in ((model, optimizer, scaler), (other, plain, other_scaler)):
                generator = torch.Generator().manual_seed(100 * step + tw.rank())
                inputs = torch.randn(4, 6, generator=generator)
                if step == 1 and tw.rank() == 1:
                    inputs *= torch.inf
                steps.zero_grad()
                scales.scale(each(inputs).square().mean()).backward()
                if unscales:
                    scales.unscale_(steps)
                    nn.utils.clip_grad_norm_(each.parameters(), 0.1)
                before = _bits(each)
                scales.step(steps)
                if step == 1 and tw.rank() == 1:
                    assert _bits(each) == before
                    assert not all(bool(p.grad.isfinite().all()) for p in each.parameters())
                scales.update()
            assert scaler.get_scale() == other_scaler.get_scale()
            if step < 2:
                assert _bits(model) == _bits(other), f"{name}, step {step}"
        assert optimizer.is_synchronized
        same_everywhere(model, name)


def compiled() -> None:
    """A step that torch compiles has the same bits."""
    if tw.size() != 2:  # It takes seconds.
        return
    found = []
    for compiles in (False, True):
        torch.manual_seed(1)
        model = two_layers()
        optimizer = tw.DiLoCo(model, _sgd(model), 3, name=f"compiled.{compiles}")

        def step(
            inputs: torch.Tensor,
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
        ) -> None:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        run = torch.compile(step, backend="aot_eager") if compiles else step
        generator = torch.Generator().manual_seed(tw.rank())
        for _ in range(7):
            run(torch.randn(4, 6, generator=generator))
        assert optimizer.state_dict()["talweg_local"]["steps"] == 7
        found.append(_bits(model))
    assert found[0] == found[1]


def process_sets() -> None:
    torch.manual_seed(1)
    model = two_layers()
    if tw.size() < 3:
        return
    some = tw.ProcessSet([1, 2])
    if not some.included():
        return
    optimizer = tw.DiLoCo(model, _sgd(model), 2, name="set", process_set=some)
    for step in range(4):
        _step(model, optimizer, step)
    own = [p.detach().numpy().tobytes() for p in model.parameters()]
    everyone = tw.all_gather_object(own, process_set=some)
    assert everyone[0] == everyone[1]


def _resumes(name: str, saved_after: int, **arguments: Any) -> None:
    """A run that is saved and loaded ends with the bits of one that was not."""

    def fresh(seed: int, suffix: str) -> tuple[nn.Module, Any]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        adam = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, tw.DiLoCo(model, adam, 4, name=f"{name}.{suffix}", **arguments)

    one, whole = fresh(1, "whole")
    for step in range(15):
        if step == saved_after:
            file = io.BytesIO()
            torch.save({"model": one.state_dict(), "optimizer": whole.state_dict()}, file)
            file.seek(0)
        _step(one, whole, step)
    other, resumed = fresh(2 + tw.rank(), "resumed")
    found = torch.load(file, weights_only=True)
    other.load_state_dict(found["model"])
    resumed.load_state_dict(found["optimizer"])
    for step in range(saved_after, 15):
        _step(other, resumed, step)
    # What is drawn where numbers are rounded differs between rounds.
    assert _IS_ROUNDED or _bits(one) == _bits(other), name
    whole.flush()
    resumed.flush()
    same_everywhere(other, name)
    assert _IS_ROUNDED or _bits(one) == _bits(other), name


def checkpoints() -> None:
    _resumes("plain", 6)
    _resumes("at_a_meeting", 8)
    for saved_after in (3, 5, 6, 7):  # Before it is sent, under way, when it is applied.
        of = {"fragments": 2, "delay": 2, "mix": 0.5}
        _resumes(f"streaming{saved_after}", saved_after, **of)


def one_rank_loads() -> None:
    """All take over what one rank has loaded."""
    torch.manual_seed(1)
    model = two_layers()
    optimizer = tw.DiLoCo(model, _sgd(model), 3, name="saved", fragments=2, delay=1)
    for step in range(5):
        _step(model, optimizer, step)
    optimizer.flush()
    for step in range(5, 7):
        _step(model, optimizer, step)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    loader = tw.size() - 1
    torch.manual_seed(7 + tw.rank())
    other = two_layers()
    again = tw.DiLoCo(other, _sgd(other), 3, name="loaded", fragments=2, delay=1)
    if tw.rank() == loader:
        other.load_state_dict(state[0])
        again.load_state_dict(state[1])
    again.register_step_pre_hook(lambda *_: same_everywhere(other, "loaded by one rank"))
    _step(other, again, 7)
    with again.global_parameters():
        same_everywhere(other, "global after one rank has loaded")
    assert again.state_dict()["talweg_local"]["steps"] == 8
    again.flush()
    same_everywhere(other, "flushed after one rank has loaded")


def states_that_do_not_fit() -> None:
    model = two_layers()
    optimizer = tw.DiLoCo(model, _sgd(model), 3, name="fits", delay=1)
    _step(model, optimizer, 0)
    state = optimizer.state_dict()
    other = tw.DiLoCo(two := two_layers(), _sgd(two), 4, name="fits.not", delay=1)
    expect(
        talweg.Mismatch,
        "DiLoCo 'fits.not' has every=4, and the state that is loaded was saved with every=3",
        other.load_state_dict,
        state,
    )
    wide = nn.Sequential(nn.Linear(6, 3))
    third = tw.DiLoCo(wide, _sgd(wide), 3, name="fits.neither", delay=1)
    foreign = {**third.state_dict(), "talweg_local": state["talweg_local"]}
    expect(
        talweg.Mismatch, "'1.weight', which the optimizer has not", third.load_state_dict, foreign
    )
    # A plain optimizer takes the state, and a state without the entry begins anew.
    _sgd(model).load_state_dict(state)
    optimizer.load_state_dict(_sgd(model).state_dict())
    assert optimizer.state_dict()["talweg_local"]["parameters"] == {}
    optimizer.load_state_dict(state)
    assert optimizer.state_dict()["talweg_local"]["steps"] == 1


def refused_arguments() -> None:
    model = two_layers()

    def diloco(every: Any = 4, **arguments: Any) -> None:
        tw.DiLoCo(model, _sgd(model), every, **arguments)

    for arguments, text in (
        ({"every": 0}, "DiLoCo: every is 0; it must be a whole number of steps, at least 1"),
        ({"every": 2.5}, "every is 2.5"),
        ({"every": True}, "every is True"),
        ({"outer_lr": 0}, "outer_lr is 0; it must be a number above 0"),
        ({"outer_lr": float("nan")}, "outer_lr is nan"),
        ({"outer_momentum": 1.0}, "outer_momentum is 1.0; it must be at least 0, and below 1"),
        ({"nesterov": 1}, "nesterov is 1; it must be True or False"),
        ({"fragments": 5}, "fragments is 5; it must be a whole number from 1, above neither"),
        ({"every": 8, "fragments": 5}, "nor the number of parameters (4)"),
        ({"delay": 4}, "delay is 4; it must be a whole number of steps, at least 0, and below"),
        ({"delay": -1}, "delay is -1"),
        ({"mix": 1.0}, "mix is 1.0; it must be at least 0, and below 1"),
        ({"average_buffers": 1}, "average_buffers is 1"),
    ):
        expect(talweg.InvalidArgument, text, diloco, **arguments)
    other = two_layers()
    expect(
        talweg.InvalidArgument,
        "4 of the optimizer's 4 parameters are not the model's",
        *(tw.LocalSGD, other, _sgd(model), 3),
    )
    together = tw.DistributedOptimizer(_sgd(other), other.named_parameters(), name="refused")
    expect(talweg.InvalidArgument, "is a DistributedOptimizer", tw.LocalSGD, other, together, 3)
    local = tw.LocalSGD(model, _sgd(model), 3, name="refused.local")
    expect(talweg.InvalidArgument, "call its flush()", tw.DistributedOptimizer, local)
    hvd.init()
    bps.init()
    named = {"named_parameters": list(model.named_parameters())}
    expect(talweg.InvalidArgument, "call its flush()", hvd.DistributedOptimizer, local, **named)
    expect(talweg.InvalidArgument, "call its flush()", bps.DistributedOptimizer, local, **named)
    adasum = {**named, "op": hvd.Adasum}
    expect(talweg.InvalidArgument, "call its flush()", hvd.DistributedOptimizer, local, **adasum)
    assert hasattr(local, "flush")
    combined = hvd.DistributedOptimizer(_sgd(other), op=hvd.Adasum)
    expect(talweg.InvalidArgument, "is a DistributedOptimizer", tw.LocalSGD, other, combined, 3)
    meta = nn.Linear(2, 2, device="meta")
    expect(talweg.InvalidArgument, "parameter 'weight'", tw.LocalSGD, meta, _sgd(meta), 3)
    expect(talweg.InvalidArgument, "model is a generator", tw.LocalSGD, model.parameters(), None, 3)


def ranks_that_differ() -> None:
    if tw.size() == 1:
        return
    last = tw.size() - 1
    is_last = tw.rank() == last

    def refused(text: str, model: nn.Module, make: Any, *given: Any, **named: Any) -> None:
        optimizer = make(model, _sgd(model), *given, **named)
        expect(talweg.Mismatch, text, _step, model, optimizer, 0)

    text = f"rank 0 has every=4, and rank {last} has every=5"
    refused(text, two_layers(), tw.LocalSGD, 5 if is_last else 4, name="every")
    text = f"rank 0 has fragments=2, and rank {last} has fragments=1"
    refused(text, two_layers(), tw.DiLoCo, 4, fragments=1 if is_last else 2, name="fragments")
    text = "outer_lr=1.0, outer_momentum=0.0, nesterov=False"
    refused(text, two_layers(), tw.LocalSGD if is_last else tw.DiLoCo, 4, name="caller")
    model = nn.Linear(6, 4) if is_last else nn.Linear(6, 3)
    text = f"rank 0 has 'weight' (float32[3, 6]) where rank {last} has 'weight' (float32[4, 6])"
    refused(text, model, tw.LocalSGD, 4, name="shapes")
    model = nn.Linear(6, 3, bias=not is_last)
    text = f"rank 0 has 'bias' (float32[3]) where rank {last} has no more parameters"
    refused(text, model, tw.LocalSGD, 4, name="lengths")

    def late(text: str, name: str, disagree: Any) -> None:
        """Ranks go apart after the first step."""
        model = two_layers()
        model[0].bias.requires_grad_(False)
        optimizer = tw.LocalSGD(model, _sgd(model), 3, name=name)
        _step(model, optimizer, 0)

        def go_on() -> None:
            for step in range(1, 3):
                if is_last:
                    disagree(model, optimizer)
                _step(model, optimizer, step)

        def shared() -> dict[str, torch.Tensor]:
            kept = optimizer.state_dict()["talweg_local"]["parameters"]
            return {key: each["x0"].clone() for key, each in kept.items()}

        before = shared()
        expect(talweg.Mismatch, text, go_on)
        now = shared()
        assert all(torch.equal(now[key], before[key]) for key in before), "something was applied"

    text = "rank 0 is at step 3, fragment 0 with 3 parameters and 0 buffers"
    late(text, "thaws", lambda model, _: model[0].bias.requires_grad_())
    text = f"and rank {last} at flush() after step 1"
    late(text, "flushes", lambda _, optimizer: optimizer.flush())


if __name__ == "__main__":
    tw.init()
    torch.set_num_threads(1)
    run_cases(
        equal_beginnings,
        flushes,
        buffers,
        inner_state,
        inner_state_that_some_lack,
        short_types,
        tied_unused_and_frozen,
        parameter_groups,
        schedulers,
        closures,
        gradient_scalers,
        compiled,
        process_sets,
        checkpoints,
        one_rank_loads,
        states_that_do_not_fit,
        refused_arguments,
        ranks_that_differ,
    )
    tw.shutdown()
