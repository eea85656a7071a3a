# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose gradients are averaged over all ranks while backward still runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from talweg import _client, _objects
from talweg._client import Client, Handle, Op
from talweg.errors import InvalidArgument
from talweg.torch._state import broadcast_optimizer_state, broadcast_parameters
from talweg.torch._tensors import finish, start

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


class _GradientAverager:
    """Pushes each gradient when it is ready and puts the averages back when backward ends.

    The last backward pass of a step pushes a parameter's gradient the moment it is accumulated.
    When that pass ends, parameters without a gradient push zeros, because every rank pushes every
    tensor in every round, and the averages replace the gradients. Which parameters any rank had
    a gradient for travels beside them, one byte each: a parameter that nobody used keeps the
    gradient (or the None) it had, as with DistributedDataParallel.
    """

    def __init__(
        self, named_parameters: list[tuple[str, torch.nn.Parameter]], passes: int, name: str
    ) -> None:
        self._client: Client = _client.current()
        self._name = name
        self._passes = passes
        self._backwards = 0
        self._in_backward = False
        self._synchronized = False
        self._parameters: list[torch.nn.Parameter] = []
        self._names: list[str] = []
        self._index: dict[torch.nn.Parameter, int] = {}
        self._open: dict[int, Handle] = {}
        self._touched: set[int] = set()
        for parameter_name, parameter in named_parameters:
            if not parameter.requires_grad or parameter.numel() == 0:
                continue
            self._index[parameter] = len(self._parameters)
            self._parameters.append(parameter)
            self._names.append(parameter_name)
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def set_passes(self, passes: int) -> None:
        if passes < 1:
            raise InvalidArgument(f"backward_passes_per_step is {passes}; it must be at least 1")
        self._passes = passes

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if not self._in_backward:
            self._in_backward = True
            self._synchronized = False
            torch.autograd.Variable._execution_engine.queue_callback(self._on_backward_end)
        index = self._index[parameter]
        self._touched.add(index)
        if self._backwards + 1 >= self._passes:
            self._push(index)

    def _on_backward_end(self) -> None:
        self._in_backward = False
        self._backwards += 1
        if self._backwards >= self._passes:
            self.synchronize()

    def _push(self, index: int) -> None:
        parameter = self._parameters[index]
        gradient = parameter.grad if index in self._touched else None
        if gradient is None:
            gradient = torch.zeros_like(parameter, requires_grad=False)
        elif gradient.layout != torch.strided:
            raise InvalidArgument(
                f"the gradient of '{self._names[index]}' is sparse, which is not supported yet: "
                "build its layer with sparse=False"
            )
        # The layers nearest the input are needed first by the next forward pass.
        self._open[index] = start(
            self._client,
            gradient,
            gradient,
            Op.AVERAGE,
            f"{self._name}.gradient.{self._names[index]}",
            priority=-index,
        )

    def synchronize(self) -> None:
        """Averages what was accumulated since the last step; does nothing when that is done."""
        if not self._synchronized:
            self._exchange(active=True)
            self._synchronized = True

    def on_step(self) -> None:
        """A step uses up the averages."""
        self._synchronized = False

    def shadow(self) -> bool:
        """Takes part in one exchange without gradients; whether any rank still had some."""
        return self._exchange(active=False)

    def _exchange(self, active: bool) -> bool:
        for index in range(len(self._parameters)):
            if index not in self._open:
                self._push(index)
        # One byte a parameter, and a last one for the rank itself.
        used = torch.zeros(len(self._parameters) + 1, dtype=torch.uint8)
        used[list(self._touched)] = 1
        used[-1] = int(active)
        used_handle = start(self._client, used, used, Op.MAX, f"{self._name}.used")
        idle: list[tuple[int, torch.Tensor]] = []
        for index, handle in self._open.items():
            average = finish(self._client, handle)
            if index not in self._touched:
                idle.append((index, average))
        finish(self._client, used_handle)
        for index, average in idle:
            if used[index]:
                self._parameters[index].grad = average
        self._open.clear()
        self._touched.clear()
        self._backwards = 0
        return bool(used[-1])

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, p.detach()) for name, p in zip(self._names, self._parameters)]


class _DistributedMethods:
    """What DistributedOptimizer adds to an optimizer's class."""

    _talweg: _GradientAverager
    _talweg_skip: bool
    _talweg_steps: int

    def synchronize(self) -> None:
        """Returns when the gradients are averages over all ranks.

        backward() has done this already when it returns, so a call is rarely needed; it is there
        for programs written for BytePS or Horovod.
        """
        self._talweg.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it step() uses the gradients as they are."""
        self._talweg_skip = True
        try:
            yield
        finally:
            self._talweg_skip = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes accumulate before the gradients are averaged; at least 1."""
        self._talweg.set_passes(passes)

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Around a training loop in which some ranks may have fewer batches than others.

        A rank that leaves its loop early goes on taking part with zero gradients (averages still
        divide by all ranks) until every rank has left; then parameters and optimizer state are
        made those of the rank that took the most steps.
        """
        first_step = self._talweg_steps
        yield
        averager = self._talweg
        while averager.shadow():
            pass
        client = averager._client
        steps = _objects.all_gather_object(
            client, self._talweg_steps - first_step, client.auto_name("join")
        )
        root_rank = steps.index(max(steps))
        broadcast_parameters(averager.named_parameters(), root_rank)
        broadcast_optimizer_state(self, root_rank)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not optimizer._talweg_skip:
        optimizer._talweg.synchronize()
    optimizer._talweg.on_step()
    optimizer._talweg_steps += 1


def _name_parameters(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
) -> list[tuple[str, torch.nn.Parameter]]:
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        return [(f"parameter.{place}", parameter) for place, parameter in enumerate(owned)]
    wanted = {id(parameter) for parameter in owned}
    named = [(name, p) for name, p in named_parameters if id(p) in wanted]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(f"two parameters are named '{twice}': give each a name of its own")
    missing = wanted - {id(parameter) for _, parameter in named}
    if missing:
        raise InvalidArgument(
            f"{len(missing)} of the optimizer's {len(owned)} parameters are not in "
            "named_parameters: pass model.named_parameters() of all its models"
        )
    return named


def DistributedOptimizer(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    backward_passes_per_step: int = 1,
    name: str = "optimizer",
) -> OptimizerT:
    """Makes `optimizer` average its gradients over all ranks; returns the same object.

    A gradient leaves as soon as backward has it, those of the first layers overtake the others,
    and when backward() returns the averages stand in `.grad`: clipping, GradScaler, LR schedulers
    and closures work as in one process. With `backward_passes_per_step` n, every n-th backward
    does this, and the others only accumulate.

    `named_parameters` is model.named_parameters(); without it parameters are named by their
    order, which must then be the same at every rank. Every rank must call backward the same
    number of times (see join() for uneven data). A second such optimizer in one process needs
    another `name`.
    """
    averager = _GradientAverager(_name_parameters(optimizer, named_parameters), 1, name)
    averager.set_passes(backward_passes_per_step)
    original = type(optimizer)
    optimizer.__class__ = type(original.__name__, (_DistributedMethods, original), {})
    distributed: Any = optimizer
    distributed._talweg = averager
    distributed._talweg_skip = False
    distributed._talweg_steps = 0
    optimizer.register_step_pre_hook(_before_step)
    return optimizer
