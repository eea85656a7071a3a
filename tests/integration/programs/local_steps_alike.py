# SPDX-License-Identifier: Apache-2.0
"""One rank of local_steps_test.py: ranks stay alike whatever a program drops, loads or interrupts."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from typing import Any

import talweg
import talweg.torch as tw
import torch
from cases import run_cases
from expected_errors import expect
from talweg import _client
from talweg._elastic.membership import membership_of
from torch import nn
from torch_models import bits_of as _bits
from torch_models import local_step as _step
from torch_models import same_everywhere, two_layers
from torch_models import sgd_of as _sgd


def what_is_dropped_under_way() -> None:
    """A program may drop a fragment that is under way, and goes on."""

    def streaming(model: nn.Module, name: str) -> Any:
        return tw.DiLoCo(model, _sgd(model), 4, delay=2, name=name)

    def steps(model: nn.Module, optimizer: Any, count: int) -> None:
        for step in range(count):
            _step(model, optimizer, step)

    def goes_on(model: nn.Module, optimizer: Any, what: str) -> None:
        steps(model, optimizer, 9)
        optimizer.flush()
        same_everywhere(model, what)

    def under_way(name: str) -> tuple[nn.Module, Any]:
        torch.manual_seed(1)
        model = two_layers()
        optimizer = streaming(model, name)
        steps(model, optimizer, 5)  # The fragment is sent after step 4, and due after step 6.
        return model, optimizer

    model, optimizer = under_way("dropped.rollback")
    early = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    steps(model, optimizer, 4)  # Again one is under way.
    model.load_state_dict(early[0])
    optimizer.load_state_dict(early[1])
    goes_on(model, optimizer, "loaded under way")

    model, optimizer = under_way("dropped.anew")
    optimizer = streaming(model, "dropped.anew")
    goes_on(model, optimizer, "made anew under way")

    model, optimizer = under_way("dropped.deleted")
    del model, optimizer
    model = two_layers()
    optimizer = streaming(model, "dropped.deleted")
    goes_on(model, optimizer, "another one of that name")

    torch.manual_seed(1)
    model = two_layers()
    optimizer = streaming(model, "dropped.restored")
    state = tw.Elastic(model, optimizer, step=0)
    state.begin()
    for step in range(10):
        _step(model, optimizer, step)
        state.end_step()
        if step == 0:
            state.save()
    state.restore()
    for step in range(1, 9):
        _step(model, optimizer, step)
        state.end_step()
    goes_on(model, optimizer, "restored under way")


class _Interrupting:
    """Interrupts this rank at the `count`-th call of a method of its connection."""

    def __init__(self, method: str, count: int) -> None:
        self._connection: Any = _client.current().connection
        self._method, self._left = method, count
        self._call: Callable[..., Any] = getattr(self._connection, method)

    def __enter__(self) -> _Interrupting:
        setattr(self._connection, self._method, self)
        return self

    def __exit__(self, *_: object) -> None:
        delattr(self._connection, self._method)

    def __call__(self, *arguments: Any) -> Any:
        self._left -= 1
        if self._left == 0 and self._method == "wait":
            raise KeyboardInterrupt
        result = self._call(*arguments)
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)
        return result

    @property
    def has_interrupted(self) -> bool:
        return self._left <= 0


def interrupts() -> None:
    """A rank that is interrupted in a call, and makes the next one, has what all have."""
    torch.manual_seed(1)
    first = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    begun = copy.deepcopy(first.state_dict())

    def ends_with(
        name: str, method: str, count: int, delay: int, finishes: bool
    ) -> tuple[Any, bool]:
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        model.load_state_dict(begun)
        optimizer: Any = tw.DiLoCo(model, _sgd(model), 4, fragments=2, delay=delay, name=name)
        _step(model, optimizer, 0)
        interrupting = _Interrupting(method, count if tw.rank() == tw.size() - 1 else 0)
        with interrupting:
            for step in range(1, 7):
                try:
                    _step(model, optimizer, step)
                except KeyboardInterrupt:
                    if finishes:  # Otherwise the next step does, whose gradients are of before.
                        optimizer.state_dict()
        for step in range(7, 10):
            _step(model, optimizer, step)
        optimizer.flush()
        same_everywhere(model, name)
        return _bits(model), interrupting.has_interrupted

    for delay in (0, 1):
        plain, _ = ends_with(f"interrupt.{delay}", "wait", 0, delay, False)
        found = 0
        for finishes in (False, True):
            for method in ("wait", "push_pull", "push_parts"):
                for count in range(1, 4):
                    name = f"interrupt.{delay}.{method}.{count}.{finishes}"
                    bits, was_interrupted = ends_with(name, method, count, delay, finishes)
                    assert not finishes or bits == plain, name
                    found += was_interrupted
        assert tw.rank() != tw.size() - 1 or found > 8, f"only {found} were interrupted"


def interrupted_state_dict() -> None:
    """It can be repeated."""
    for count in (1, 2, 3):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        optimizer = tw.DiLoCo(model, _sgd(model), 4, delay=2, name=f"interrupted_state.{count}")
        for step in range(5):
            _step(model, optimizer, step)
        with _Interrupting("wait", count):
            expect(KeyboardInterrupt, "", optimizer.state_dict)
        assert len(optimizer.state_dict()["talweg_local"]["flights"]) == 1
        for step in range(5, 8):
            _step(model, optimizer, step)
        optimizer.flush()
        same_everywhere(model, "an interrupted state_dict()")


def _everywhere(model: nn.Module, optimizer: Any, what: str) -> None:
    """Requires that all ranks have the same parameters and buffers after flush()."""
    optimizer.flush()
    own = [each.detach().numpy().tobytes() for each in model.state_dict().values()]
    everyone = tw.all_gather_object(own)
    assert all(each == everyone[0] for each in everyone), f"ranks differ: {what}"


def loaded_states() -> None:
    """States that all ranks load in a running job, with and without the entry."""
    for delay in (0, 2):
        for what in ("plain", "own", "mixed"):
            torch.manual_seed(1)
            model = two_layers()
            name = f"load.{what}.{delay}"
            optimizer = tw.DiLoCo(model, _sgd(model), 4, fragments=2, delay=delay, name=name)
            for step in range(7):
                _step(model, optimizer, step)
            state = copy.deepcopy(optimizer.state_dict())
            if what == "plain" or (what == "mixed" and tw.rank() == 0):
                del state["talweg_local"]
            if what != "own":  # Ranks have other parameters.
                torch.manual_seed(tw.rank())
                model.load_state_dict(two_layers().state_dict())
            optimizer.load_state_dict(state)
            assert not optimizer.is_synchronized
            for step in range(7, 12):
                _step(model, optimizer, step)
            _everywhere(model, optimizer, f"{what} states are loaded")
            if tw.size() > 1:
                before = _bits(model)
                assert optimizer.is_synchronized
                optimizer.flush()
                assert _bits(model) == before
    torch.manual_seed(1)
    model = two_layers()
    optimizer = tw.LocalSGD(model, _sgd(model), 4, name="load.broadcast")
    for step in range(6):
        _step(model, optimizer, step)
    tw.broadcast_parameters(model.state_dict(), tw.size() - 1)
    tw.broadcast_optimizer_state(optimizer, tw.size() - 1)
    for step in range(6, 9):
        _step(model, optimizer, step)
    _everywhere(model, optimizer, "broadcast_optimizer_state()")


def refused_states() -> None:
    """A state that is refused changes nothing."""
    torch.manual_seed(1)
    model, other = two_layers(), two_layers()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer: Any = tw.DiLoCo(model, inner, 4, delay=2, name="refused.state")
    for step in range(5):
        _step(model, optimizer, step)
    foreign = tw.DiLoCo(other, _sgd(other, 0.5), 3, name="refused.foreign")
    _step(other, foreign, 0)
    theirs, own = foreign.state_dict(), copy.deepcopy(optimizer.state_dict())

    def refused(error: type[Exception], text: str, entry: dict[str, Any]) -> None:
        expect(error, text, optimizer.load_state_dict, {**theirs, "talweg_local": entry})
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert repr(optimizer.state_dict()) == repr(own)

    entry = own["talweg_local"]
    refused(talweg.Mismatch, "was saved with every=3", theirs["talweg_local"])
    wrong = copy.deepcopy(entry)
    wrong["parameters"]["1.bias"]["x0"] = torch.zeros(7)
    refused(talweg.InvalidArgument, "the x0 of '1.bias' (float32[3]) has shape [7]", wrong)
    wrong = copy.deepcopy(entry)
    wrong["flights"][0]["parameters"]["1.bias"] = torch.zeros(7)
    refused(talweg.InvalidArgument, "the mean of '1.bias' (float32[3]) has 7 numbers", wrong)
    for step in range(5, 8):
        _step(model, optimizer, step)
    _everywhere(model, optimizer, "a state is refused")


def changes_of_lent_parameters() -> None:
    torch.manual_seed(1)
    model = two_layers()
    optimizer = tw.LocalSGD(model, _sgd(model), 4, name="lent")
    _step(model, optimizer, 0)
    own = _bits(model)
    with optimizer.global_parameters():
        kept = copy.deepcopy(model.state_dict())

    def load() -> None:
        with optimizer.global_parameters():
            model.load_state_dict({key: value + 1 for key, value in kept.items()})

    expect(talweg.InvalidArgument, "'0.weight' has been changed within", load)
    assert _bits(model) == own

    def fail() -> None:
        with optimizer.global_parameters():
            model.load_state_dict({key: value + 1 for key, value in kept.items()})
            raise ValueError("as it is")

    expect(ValueError, "as it is", fail)
    assert _bits(model) == own
    with optimizer.global_parameters():  # What is as before has not changed.
        model.load_state_dict(kept)
    _everywhere(model, optimizer, "lent")


def one_rank_alone() -> None:
    """A rank that does alone what all are to do meets the others in their next synchronisation."""
    if tw.size() == 1:
        return
    last = tw.size() - 1

    def alone(name: str, text: str, act: Callable[[nn.Module, Any], None], steps: int = 5) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
        inner = torch.optim.SGD(model[0].parameters(), lr=0.1)
        optimizer = tw.DiLoCo(model, inner, 4, fragments=2, name=name)
        for step in range(steps):
            _step(model, optimizer, step)

        def go_on() -> None:
            if tw.rank() == last:
                act(model, optimizer)
            for step in range(steps, steps + 24):
                _step(model, optimizer, step)

        expect(talweg.Mismatch, text, go_on)
        if act is not add:  # Otherwise they still differ.
            for step in range(40, 47):
                _step(model, optimizer, step)
            _everywhere(model, optimizer, f"{name}, after Mismatch")

    at = f"and rank {last} at the agreement after the optimizer was made, has loaded a state"

    def load(_: nn.Module, optimizer: Any) -> None:
        optimizer.load_state_dict(optimizer.state_dict())

    def load_plain(_: nn.Module, optimizer: Any) -> None:
        state = optimizer.state_dict()
        del state["talweg_local"]
        optimizer.load_state_dict(state)

    def add(model: nn.Module, optimizer: Any) -> None:
        optimizer.add_param_group({"params": list(model[1].parameters())})

    def write(_: nn.Module, optimizer: Any) -> None:
        for each in optimizer.state_dict()["talweg_local"]["parameters"].values():
            each["x0"] += 1

    alone("alone.load", "rank 0 is at step 6, fragment 0 with", load)
    alone("alone.load_tells", at, load)
    alone("alone.at_another_fragment", "rank 0 is at step 8, fragment 1 with", load, 7)
    alone("alone.plain", at, load_plain)
    alone("alone.add", at, add)
    alone("alone.write", "the global parameters of rank 0 (digest", write, 15)


def added_parameters() -> None:
    """Ranks have other values of parameters that they add, or thaw, later."""
    for what in ("added", "thawed"):
        torch.manual_seed(1)
        model = two_layers()
        trained = model[0] if what == "added" else model
        model[1].requires_grad_(what == "added")
        inner = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
        optimizer: Any = tw.DiLoCo(model, inner, 3, name=f"later.{what}")
        for step in range(4):
            _step(model, optimizer, step)
        own = _bits(model[0])
        torch.manual_seed(tw.rank())
        with torch.no_grad():
            for parameter in model[1].parameters():
                parameter.uniform_(-1, 1)
        if what == "added":
            optimizer.add_param_group({"params": list(model[1].parameters())})
        else:
            model[1].requires_grad_(True)
        seen: list[list[bytes]] = []

        def note(*_: Any, model: nn.Module = model, seen: list[list[bytes]] = seen) -> None:
            seen.append(_bits(model[0]))

        hook = optimizer.register_step_pre_hook(note)
        _step(model, optimizer, 4)
        hook.remove()
        assert seen == [own], "an agreement on new parameters has changed the others"
        for step in range(5, 9):
            _step(model, optimizer, step)
        _everywhere(model, optimizer, f"parameters are {what}")


def frozen_between_two_synchronisations() -> None:
    """What steps have moved a parameter by travels, and after that it stays. A state says so."""

    def steps(model: nn.Module, optimizer: Any, numbers: range) -> None:
        for step in numbers:
            _step(model, optimizer, step)

    for loads in (False, True):
        torch.manual_seed(1)
        model, name = two_layers(), f"frozen.{loads}"
        optimizer: Any = tw.DiLoCo(model, _sgd(model), 4, name=name)
        steps(model, optimizer, range(6))  # They have met after four.
        model[0].requires_grad_(False)
        if loads:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = tw.DiLoCo(model, _sgd(model), 4, name=name)
            optimizer.load_state_dict(state)
        own = _bits(model[0])
        for step in (6, 7):
            assert _bits(model[0]) == own
            _step(model, optimizer, step)
        same_everywhere(model, "met after a parameter was frozen")
        own = _bits(model[0])
        steps(model, optimizer, range(8, 13))
        assert _bits(model[0]) == own, "a frozen parameter was moved"
        optimizer.flush()
        assert _bits(model[0]) == own, "a frozen parameter was moved by flush()"
        model[0].requires_grad_(True)
        steps(model, optimizer, range(13, 16))
        same_everywhere(model, "met after a parameter was thawed")
        assert _bits(model[0]) != own
        if tw.size() > 1:
            model[0].requires_grad_(tw.rank() == 0)
            text = "freeze and thaw parameters after the same steps"
            expect(talweg.Mismatch, text, steps, model, optimizer, range(16, 20))


def made_after_a_joiner() -> None:
    """Ranks agree, too, if some of them have joined the job before the optimizer was made."""
    membership = membership_of(_client.current())
    before, membership.began_apart = membership.began_apart, True
    try:
        torch.manual_seed(tw.rank())
        model = two_layers()
        optimizer = tw.LocalSGD(model, _sgd(model), 3, name="after_a_joiner")
        for step in range(4):
            _step(model, optimizer, step)
        _everywhere(model, optimizer, "made after a joiner")
        if tw.size() > 1:
            is_last = tw.rank() == tw.size() - 1
            apart: Any = tw.LocalSGD(model, _sgd(model), 3 + is_last, name="after_a_joiner.every")
            expect(talweg.Mismatch, "rank 0 has every=3, and", _step, model, apart, 0)
    finally:
        membership.began_apart = before


def outside_of_the_optimizer() -> None:
    """The model's other parameters and buffers are alike, too, without broadcast_parameters()."""
    torch.manual_seed(tw.rank())
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model[1].running_mean.fill_(tw.rank())
    model[1].num_batches_tracked.fill_(tw.rank())
    model[0].requires_grad_(False)
    optimizer = tw.LocalSGD(
        model, torch.optim.AdamW(model[2].parameters(), lr=0.01), 3, name="outside"
    )
    for step in range(4):
        _step(model, optimizer, step)
    _everywhere(model, optimizer, "the backbone")

    # Two optimizers share a model. Neither undoes the steps of the other.
    torch.manual_seed(1)
    model = two_layers()
    first = tw.LocalSGD(model, _sgd(model[0]), 4, name="outside.first")
    second = tw.LocalSGD(model, _sgd(model[1]), 4, name="outside.second")
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(tw.rank()))
    model(inputs).square().mean().backward()
    first.step()
    own = _bits(model[0])
    second.step()
    assert _bits(model[0]) == own
    first.flush()
    _everywhere(model, second, "two optimizers")


if __name__ == "__main__":
    tw.init()
    torch.set_num_threads(1)
    run_cases(
        what_is_dropped_under_way,
        interrupts,
        interrupted_state_dict,
        loaded_states,
        added_parameters,
        frozen_between_two_synchronisations,
        made_after_a_joiner,
        outside_of_the_optimizer,
        refused_states,
        changes_of_lent_parameters,
        one_rank_alone,
    )
    tw.shutdown()
