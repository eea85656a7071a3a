# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose gradients are averaged over all ranks while backward still runs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from talweg import _client, _objects
from talweg._client import Client, Handle, Op
from talweg.errors import Busy, InvalidArgument
from talweg.torch import _cuda
from talweg.torch._forward_overlap import ForwardOverlap
from talweg.torch._in_place import is_worth_it, start_average
from talweg.torch._state import broadcast_optimizer_state, broadcast_parameters
from talweg.torch._tensors import declaration_of, finish, start

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

    A parameter is active when it takes part: from the first time on that it requires a gradient.

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
        self.client: Client = _client.current()
        self.name = name
        self._passes = passes
        self._waits = waits
        self._backwards = 0
        self._in_backward = False
        self._averaged = False
        self._additions = 0
        self._names: list[str] = []
        self._dtypes: list[torch.dtype] = []
        self._index: dict[torch.nn.Parameter, int] = {}
        self._hooks: dict[int, RemovableHandle] = {}  # Of the active ones.
        self._frozen: list[int] = []
        self._declared = False
        self._pushed: dict[int, Handle] = {}
        self._gradients: dict[int, tuple[torch.Tensor, int]] = {}
        self._touched: set[int] = set()
        self._exchange: _Exchange | None = None
        self.parameters: list[torch.nn.Parameter] = []
        self._append(named_parameters)

    def _append(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        for parameter_name, parameter in named_parameters:
            if parameter.numel() == 0 or parameter in self._index:
                continue
            index = len(self.parameters)
            self._index[parameter] = index
            self.parameters.append(parameter)
            self._names.append(parameter_name)
            self._dtypes.append(parameter.dtype)
            self._frozen.append(index)
        self.activate(behind_backward=False)

    def add(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Between two steps, and at every rank."""
        self._additions += 1
        self._append(named_parameters)

    def activate(self, behind_backward: bool) -> None:
        """Takes in which parameters require gradients by now; theirs count `behind_backward`."""
        thawed = [index for index in self._frozen if self.parameters[index].requires_grad]
        if not thawed:
            return
        self._frozen = [index for index in self._frozen if index not in set(thawed)]
        for index in thawed:
            parameter = self.parameters[index]
            earlier = _averagers.get(id(parameter))
            if earlier is not None:
                earlier.let_go(parameter)
            _averagers[id(parameter)] = self
            self._hooks[index] = parameter.register_post_accumulate_grad_hook(
                partial(self._on_gradient, index)
            )
            if behind_backward and parameter.grad is not None:
                self._touched.add(index)

    def let_go(self, parameter: torch.nn.Parameter) -> None:
        """Another one averages its gradient from now on."""
        index = self._index.get(parameter)
        if index is not None and index in self._hooks:
            self._hooks[index].remove()

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

    def _on_gradient(self, index: int, _: torch.Tensor) -> None:
        if not self._in_backward:
            self._in_backward = True
            self._averaged = False
            torch.autograd.Variable._execution_engine.queue_callback(self._on_backward_end)
        self._touched.add(index)
        if self._backwards + 1 >= self._passes:
            self._push(index)

    def forget_backward(self) -> None:
        """One that has ended with an error was never told to have ended."""
        self._in_backward = False

    def _on_backward_end(self) -> None:
        self._in_backward = False
        self._backwards += 1
        if self._backwards >= self._passes:
            if self._waits:
                self.synchronize()
            else:
                self.begin()

    def _tensor_name(self, index: int) -> str:
        name = f"{self.name}.gradient.{self._names[index]}"
        # A tensor's dtype is agreed for ever, a model's may be changed.
        dtype = self.parameters[index].dtype
        return name if dtype == self._dtypes[index] else f"{name}.{dtype}"

    def _declare(self) -> None:
        """All gradients in one go: one by one in their pushes, many parameters take seconds."""
        self._declared = True
        together: dict[tuple[torch.device, bool], list[int]] = {}
        for index, parameter in enumerate(self.parameters):
            if index in self._hooks:
                together.setdefault((parameter.device, is_worth_it(parameter)), []).append(index)
        for (_, in_place), indexes in together.items():
            declarations = [
                (
                    self._tensor_name(index),
                    declaration_of(self.parameters[index], Op.AVERAGE),
                    self.priority_of(index),
                )
                for index in indexes
            ]
            parameters = [self.parameters[index] for index in indexes]
            _cuda.declare_all(self.client, parameters, declarations, in_place)

    def _push(self, index: int) -> None:
        if not self._declared:
            self._declare()
        if index in self._pushed:
            raise InvalidArgument(
                f"the gradient of '{self._names[index]}' has left and has come again: an earlier "
                "backward() has ended with an error (then every rank calls the optimizer's "
                "synchronize()), or the parameter is used inside and outside of a checkpoint "
                "(use_reentrant=False)"
            )
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
        try:
            self._pushed[index] = start_average(
                self.client, gradient, self._tensor_name(index), self.priority_of(index)
            )
        except Busy as error:
            raise Busy(
                f"{error}. If this process has several DistributedOptimizers, give each a `name`"
            ) from None

    def begin(self, active: bool = True) -> None:
        """Pushes what backward has not; does nothing when averages are under way already."""
        if self._exchange is not None:
            return
        self.activate(behind_backward=True)
        for index in self._hooks:
            if index not in self._pushed:
                self._push(index)
        # One byte a parameter, and a last one for the rank itself.
        used = torch.zeros(len(self.parameters) + 1, dtype=torch.uint8)
        used[list(self._touched)] = 1
        used[-1] = int(active)
        name = f"{self.name}.used" + (f".{self._additions}" if self._additions else "")
        handle = start(self.client, used, used, Op.MAX, name, priority=_USED_PRIORITY)
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
            average = finish(self.client, handle)
            if index not in exchange.touched:
                if not exchange.used_handle.done:
                    finish(self.client, exchange.used_handle)
                if not exchange.used[index]:
                    continue
            taken.append((index, average))
        if not exchange.open:
            if not exchange.used_handle.done:
                finish(self.client, exchange.used_handle)
            self._exchange = None
            self._check_frozen(exchange.used)
        return taken

    def _check_frozen(self, used: torch.Tensor) -> None:
        """Another rank that has a gradient waits for this one's."""
        for index in self._frozen:
            if used[index]:
                raise InvalidArgument(
                    f"another rank has a gradient of '{self._names[index]}', which is frozen here "
                    "(requires_grad=False): freeze and unfreeze parameters at all ranks alike"
                )

    def synchronize(self) -> None:
        """Averages what was accumulated since the last step; does nothing when that is done."""
        self._in_backward = False
        if self._averaged:
            return
        self.begin()
        for index, average in self.take(range(len(self.parameters))):
            self.parameters[index].grad = average
        self._averaged = True

    def on_step(self) -> None:
        """A step uses up the averages."""
        self._averaged = False
        self._in_backward = False

    def shadow(self) -> bool:
        """Takes part in one exchange without gradients; whether any rank still had some."""
        if self._exchange is None:
            self._touched.clear()  # What was accumulated and led to no step.
        self.begin(active=False)
        exchange = self._exchange
        assert exchange is not None
        self.take(range(len(self.parameters)))
        return bool(exchange.used[-1])

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        return [(self._names[index], self.parameters[index].detach()) for index in self._hooks]


# By id of an active parameter, which its averager keeps alive: which one averages its gradient.
_averagers: weakref.WeakValueDictionary[int, GradientAverager] = weakref.WeakValueDictionary()


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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The optimizer's own; its gradients are averaged, too. At every rank alike."""
        self.synchronize_parameters()
        super().add_param_group(param_group)  # type: ignore[misc]
        groups: list[dict[str, Any]] = self.param_groups  # type: ignore[attr-defined]
        number = len(groups) - 1
        self._talweg.add((f"group.{number}.{i}", p) for i, p in enumerate(groups[-1]["params"]))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._talweg.forget_backward()
        self._talweg.activate(behind_backward=False)
        super().zero_grad(set_to_none)  # type: ignore[misc]

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
            averager.client, self._talweg_steps - first_step, f"{averager.name}.join"
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
    another `name`; one for the same parameters takes them over. Parameters may be frozen, thawed
    and added (add_param_group) between steps, at all ranks alike. Where a rank goes on after an
    error in backward(), it calls synchronize() and step(): the others wait for its gradients.
    Ranks of one node sum larger gradients in memory that they share, and `.grad` is then there:
    a gradient that is kept beyond its step keeps its values, and a forked child sees zeros.

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
