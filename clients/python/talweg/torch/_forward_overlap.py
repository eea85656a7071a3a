# SPDX-License-Identifier: Apache-2.0
"""Lets the next forward pass make an optimizer's step, module by module, as the averages come."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.hooks import RemovableHandle

from talweg import _client
from talweg._client import Client
from talweg._exchange.exchange import GradientExchange
from talweg.errors import InvalidArgument
from talweg.torch._uncompiled import keep_out_of_graphs


class Averages(Protocol):
    """What ForwardOverlap needs of the optimizer's averager."""

    parameters: list[torch.nn.Parameter]
    exchange: GradientExchange

    def index_of(self, parameter: torch.nn.Parameter) -> int | None: ...


def require_alone(optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidArgument if the optimizer cannot update a parameter without all others."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgument(
            "overlap_forward does not work with LBFGS, whose update of a parameter depends on "
            "all others: leave overlap_forward out"
        )


class ForwardOverlap:
    """Puts an optimizer's updates off until a module's forward needs its parameters.

    step() keeps what an update needs: the groups' current hyperparameters, and the rounds under
    way. A hook before each module's forward waits for the averages of that module's own parameters,
    and lets the optimizer update these alone.

    Code that computes with a parameter, without calling the forward of the module that owns it,
    would see the parameter before its update. So step() puts off only the parameters of modules
    whose forward has run since the last step. It waits for all others and updates them. A module in
    eval mode updates all parameters below it, because such code is common there (fused inference).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        original: type[torch.optim.Optimizer],
        averages: Averages,
        model: torch.nn.Module,
    ) -> None:
        self._optimizer = optimizer
        # The step without the hooks that users register, because these belong to the whole step.
        self._update_all = getattr(original.step, "__wrapped__", original.step)
        self._averages = averages
        self._exchange = averages.exchange
        self._waiting: dict[int, int] = {}  # The group of each parameter that is put off.
        self._groups: list[dict[str, Any]] = []
        self._kept: dict[int, torch.Tensor | None] = {}
        self._announced: set[int] = set()
        self.hooks: list[RemovableHandle] = []  # The hooks of the model's modules.
        _client.call_when_replaced(self._begin_anew)
        _client.call_at_end_of_step(self.finish)
        for module in model.modules():
            own = self._indices(module.parameters(recurse=False))
            below = self._indices(module.parameters())
            if below:
                hook = functools.partial(self._before_forward, own, below)
                self.hooks.append(module.register_forward_pre_hook(hook))

    def _indices(self, parameters: Iterator[torch.nn.Parameter]) -> list[int]:
        found = (self._averages.index_of(parameter) for parameter in parameters)
        return [index for index in found if index is not None]

    def _before_forward(
        self, own: list[int], below: list[int], module: torch.nn.Module, inputs: Any
    ) -> None:
        self._announced.update(own)
        if self._waiting:
            self._update(own if module.training else below)

    def _begin_anew(self, _: Client) -> None:
        """Drops all updates, because the client that had their rounds is gone."""
        self._waiting.clear()
        self._kept.clear()
        self._announced.clear()

    @property
    def is_open(self) -> bool:
        """Whether updates are put off."""
        return bool(self._waiting)

    def step(self, at_once: bool) -> None:
        """Puts updates off, and makes those that cannot be put off.

        Makes all of them now if `at_once`, or if the averages are there already.
        """
        self.finish()
        if at_once or self._exchange.averaged:
            self._update_all(self._optimizer)
            return
        self._exchange.begin()
        self._exchange.check_unchanged()
        strangers: list[list[torch.nn.Parameter]] = []
        self._groups = []
        for number, group in enumerate(self._optimizer.param_groups):
            # A scheduler may change the hyperparameters before the forward pass comes.
            kept = {name: _copy(value) for name, value in group.items() if name != "params"}
            self._groups.append(kept)
            strangers.append([])
            for parameter in group["params"]:
                index = self._averages.index_of(parameter)
                if index is None:
                    strangers[-1].append(parameter)
                    continue
                self._waiting[index] = number
                self._kept[index] = parameter.grad
                parameter.grad = None
        if any(parameter.grad is not None for some in strangers for parameter in some):
            self._update_some(strangers)
        self._update([index for index in self._waiting if index not in self._announced])
        self._announced.clear()

    def finish(self) -> None:
        """Returns when nothing is put off any more."""
        self._update(list(self._waiting))

    def _update(self, indices: list[int]) -> None:
        waiting = [index for index in indices if index in self._waiting]
        if not waiting:
            return
        averages = dict(self._exchange.take(waiting))
        parameters: list[list[torch.nn.Parameter]] = [[] for _ in self._groups]
        newer: list[tuple[torch.nn.Parameter, torch.Tensor | None]] = []
        for index in waiting:
            parameter = self._averages.parameters[index]
            newer.append((parameter, parameter.grad))
            kept = self._kept.pop(index)
            parameter.grad = averages.get(index, kept)
            parameters[self._waiting.pop(index)].append(parameter)
        try:
            self._update_some(parameters)
        finally:
            for parameter, gradient in newer:
                parameter.grad = gradient

    def _update_some(self, parameters: list[list[torch.nn.Parameter]]) -> None:
        """Makes the optimizer's step for these parameters of each group."""
        groups = self._optimizer.param_groups
        self._optimizer.param_groups = [
            {**kept, "params": some} for kept, some in zip(self._groups, parameters) if some
        ]
        try:
            with torch.inference_mode(False):  # The forward pass may run in inference mode.
                self._update_all(self._optimizer)
        finally:
            self._optimizer.param_groups = groups


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


keep_out_of_graphs(ForwardOverlap)
