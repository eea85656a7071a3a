# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose gradients are averaged over all ranks while backward still runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from talweg import _client, _objects
from talweg._client import Client, Declaration, Handle, Op
from talweg.errors import InvalidArgument
from talweg.torch._forward_overlap import ForwardOverlap
from talweg.torch._state import broadcast_optimizer_state, broadcast_parameters
from talweg.torch._tensors import finish, start, wire_dtype

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


# The byte that says which gradients count is small, and updates wait for it.
_USED_PRIORITY = 2**30


@dataclass
class _Exchange:
    """One step's averages under way: every parameter's round, and who had a gradient."""

    touched: set[int]
    open: dict[int, Handle]
    gradients: dict[int, tuple[torch.Tensor, int]]  # As pushed, with torch's count of changes.
    used: torch.Tensor
    used_handle: Handle


class GradientAverager:
    """Pushes each gradient when it is ready and puts the averages back when backward ends.

    The last backward pass of a step pushes a parameter's gradient the moment it is accumulated.
    When that pass ends, parameters without a gradient push zeros, because every rank pushes every
    tensor in every round, and the averages replace the gradients. Which parameters any rank had
    a gradient for travels beside them, one byte each: a parameter that nobody used keeps the
    gradient (or the None) it had, as with DistributedDataParallel.

    With `waits` False the end of backward does not wait for the averages: whoever needs some of
    them calls take(), or synchronize() for all.
    """

    def __init__(
        self,
        named_parameters: list[tuple[str, torch.nn.Parameter]],
        passes: int,
        name: str,
        waits: bool = True,
    ) -> None:
        self._client: Client = _client.current()
        self._name = name
        self._passes = passes
        self._waits = waits
        self._backwards = 0
        self._in_backward = False
        self._averaged = False
        self._names: list[str] = []
        self._index: dict[torch.nn.Parameter, int] = {}
        self._declared = False
        self._pushed: dict[int, Handle] = {}
        self._gradients: dict[int, tuple[torch.Tensor, int]] = {}
        self._touched: set[int] = set()
        self._exchange: _Exchange | None = None
        self.parameters: list[torch.nn.Parameter] = []
        for parameter_name, parameter in named_parameters:
            if not parameter.requires_grad or parameter.numel() == 0:
                continue
            self._index[parameter] = len(self.parameters)
            self.parameters.append(parameter)
            self._names.append(parameter_name)
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def set_passes(self, passes: int) -> None:
        if passes < 1:
            raise InvalidArgument(f"backward_passes_per_step is {passes}; it must be at least 1")
        self._passes = passes

    def index_of(self, parameter: torch.nn.Parameter) -> int | None:
        return self._index.get(parameter)

    def priority_of(self, index: int) -> int:
        """The layers nearest the input are needed first by the next forward pass."""
        return -index

    @property
    def averaged(self) -> bool:
        """Whether the averages stand in `.grad` since the last backward."""
        return self._averaged

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if not self._in_backward:
            self._in_backward = True
            self._averaged = False
            torch.autograd.Variable._execution_engine.queue_callback(self._on_backward_end)
        index = self._index[parameter]
        self._touched.add(index)
        if self._backwards + 1 >= self._passes:
            self._push(index)

    def _on_backward_end(self) -> None:
        self._in_backward = False
        self._backwards += 1
        if self._backwards >= self._passes:
            if self._waits:
                self.synchronize()
            else:
                self.begin()

    def _tensor_name(self, index: int) -> str:
        return f"{self._name}.gradient.{self._names[index]}"

    def _declare(self) -> None:
        """All gradients in one go: one by one in their pushes, many parameters take seconds."""
        self._declared = True
        self._client.declare_all(
            (
                self._tensor_name(index),
                Declaration(wire_dtype(parameter), parameter.numel(), Op.AVERAGE, 0),
                self.priority_of(index),
            )
            for index, parameter in enumerate(self.parameters)
            if parameter.device.type == "cpu"
        )

    def _push(self, index: int) -> None:
        if not self._declared:
            self._declare()
        parameter = self.parameters[index]
        gradient = parameter.grad if index in self._touched else None
        if gradient is None:
            gradient = torch.zeros_like(parameter, requires_grad=False)
        elif gradient.layout != torch.strided:
            raise InvalidArgument(
                f"the gradient of '{self._names[index]}' is sparse, which is not supported yet: "
                "build its layer with sparse=False"
            )
        else:
            self._gradients[index] = (gradient, gradient._version)
        self._pushed[index] = start(
            self._client,
            gradient,
            gradient,
            Op.AVERAGE,
            self._tensor_name(index),
            priority=self.priority_of(index),
        )

    def begin(self, active: bool = True) -> None:
        """Pushes what backward has not; does nothing when averages are under way already."""
        if self._exchange is not None:
            return
        for index in range(len(self.parameters)):
            if index not in self._pushed:
                self._push(index)
        # One byte a parameter, and a last one for the rank itself.
        used = torch.zeros(len(self.parameters) + 1, dtype=torch.uint8)
        used[list(self._touched)] = 1
        used[-1] = int(active)
        handle = start(
            self._client, used, used, Op.MAX, f"{self._name}.used", priority=_USED_PRIORITY
        )
        self._exchange = _Exchange(self._touched, self._pushed, self._gradients, used, handle)
        self._touched, self._pushed, self._gradients, self._backwards = set(), {}, {}, 0

    def check_unchanged(self) -> None:
        """Raises InvalidArgument when a gradient is not what was pushed any more."""
        if self._exchange is None:
            return
        for index, (gradient, version) in self._exchange.gradients.items():
            if self.parameters[index].grad is gradient and gradient._version == version:
                continue
            raise InvalidArgument(
                f"the gradient of '{self._names[index]}' was changed between backward() and "
                "step(), while its average was under way (overlap_forward): call the optimizer's "
                "synchronize() before clipping, unscaling or changing gradients"
            )

    def take(self, indices: Iterable[int]) -> list[tuple[int, torch.Tensor]]:
        """Waits for these parameters' averages of the exchange that has begun; returns them.

        A parameter that no rank had a gradient for is left out, as is one that has been taken.
        """
        exchange = self._exchange
        if exchange is None:
            return []
        taken: list[tuple[int, torch.Tensor]] = []
        for index in indices:
            handle = exchange.open.pop(index, None)
            if handle is None:
                continue
            average = finish(self._client, handle)
            if index not in exchange.touched:
                if not exchange.used_handle.done:
                    finish(self._client, exchange.used_handle)
                if not exchange.used[index]:
                    continue
            taken.append((index, average))
        if not exchange.open:
            if not exchange.used_handle.done:
                finish(self._client, exchange.used_handle)
            self._exchange = None
        return taken

    def synchronize(self) -> None:
        """Averages what was accumulated since the last step; does nothing when that is done."""
        if self._averaged:
            return
        self.begin()
        for index, average in self.take(range(len(self.parameters))):
            self.parameters[index].grad = average
        self._averaged = True

    def on_step(self) -> None:
        """A step uses up the averages."""
        self._averaged = False

    def shadow(self) -> bool:
        """Takes part in one exchange without gradients; whether any rank still had some."""
        self.begin(active=False)
        exchange = self._exchange
        assert exchange is not None
        self.take(range(len(self.parameters)))
        return bool(exchange.used[-1])

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, p.detach()) for name, p in zip(self._names, self.parameters)]


class _DistributedMethods:
    """What DistributedOptimizer adds to an optimizer's class."""

    _talweg: GradientAverager
    _talweg_skip: bool
    _talweg_steps: int

    def synchronize(self) -> None:
        """Returns when the gradients are averages over all ranks.

        backward() has done this already when it returns, so a call is rarely needed; it is there
        for programs written for BytePS or Horovod.
        """
        self._talweg.synchronize()

    def synchronize_parameters(self) -> None:
        """Returns when every parameter has had its last step; see `overlap_forward`."""

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
        self.synchronize_parameters()
        averager = self._talweg
        while averager.shadow():
            pass
        steps = _objects.all_gather_object(
            averager._client, self._talweg_steps - first_step, f"{averager._name}.join"
        )
        root_rank = steps.index(max(steps))
        broadcast_parameters(averager.named_parameters(), root_rank)
        broadcast_optimizer_state(self, root_rank)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not optimizer._talweg_skip:
        optimizer._talweg.synchronize()
    optimizer._talweg.on_step()
    optimizer._talweg_steps += 1


class _OverlappedMethods(_DistributedMethods):
    """The same, where the next forward pass waits for the averages, layer by layer."""

    _talweg_overlap: ForwardOverlap

    def step(self, closure: Any = None) -> Any:
        """Takes the step; each parameter's part of it when the forward pass comes to it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._talweg_overlap.step(at_once=self._talweg_skip)
        self._talweg.on_step()
        self._talweg_steps += 1
        return loss

    def synchronize(self) -> None:
        self.synchronize_parameters()
        self._talweg.synchronize()

    def synchronize_parameters(self) -> None:
        self._talweg_overlap.finish()

    def state_dict(self) -> dict[str, Any]:
        self.synchronize_parameters()
        return super().state_dict()  # type: ignore[misc, no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.synchronize_parameters()
        super().load_state_dict(state_dict)  # type: ignore[misc]


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
    overlap_forward: torch.nn.Module | None = None,
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

    `overlap_forward`, a model, hides more of the communication: neither backward() nor step()
    waits. The next forward pass of that model does, module by module, and makes each one's update
    just before it runs: the first layer works while the last one's gradient is under way. The
    weights are the same to the last bit. What it asks for: an optimizer whose update of a
    parameter depends on that parameter alone (SGD, Adam and their kin, not LBFGS); before
    gradients are looked at (clipping, GradScaler) a call of synchronize(), which waits; before
    weights are looked at other than by the model's forward and state_dict() a call of
    synchronize_parameters(). After step() gradients are gone, as after zero_grad().
    """
    overlaps = overlap_forward is not None
    averager = GradientAverager(
        _name_parameters(optimizer, named_parameters), 1, name, waits=not overlaps
    )
    averager.set_passes(backward_passes_per_step)
    original = type(optimizer)
    methods = _OverlappedMethods if overlaps else _DistributedMethods
    optimizer.__class__ = type(original.__name__, (methods, original), {})
    distributed: Any = optimizer
    distributed._talweg = averager
    distributed._talweg_skip = False
    distributed._talweg_steps = 0
    if overlap_forward is not None:
        distributed._talweg_overlap = ForwardOverlap(optimizer, original, averager, overlap_forward)
        optimizer._patch_step_function()  # Users' step hooks go around this step, once.
    else:
        optimizer.register_step_pre_hook(_before_step)
    return optimizer
