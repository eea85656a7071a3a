# SPDX-License-Identifier: Apache-2.0
"""One rank of local_steps_test.py: ranks stay alike whatever a program drops, loads or interrupts."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from typing import Any

import talweg.torch as tw
import torch
from cases import run_cases
from expected_errors import expect
from talweg import _client
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


if __name__ == "__main__":
    tw.init()
    torch.set_num_threads(1)
    run_cases(
        what_is_dropped_under_way,
        interrupts,
        interrupted_state_dict,
    )
    tw.shutdown()
