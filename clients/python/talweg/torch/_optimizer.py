# SPDX-License-Identifier: Apache-2.0
"""Makes an optimizer average its gradients over all ranks, while backward still runs."""

from __future__ import annotations

import contextlib
import numbers
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from talweg._declaration import milliseconds_of
from talweg._exchange.states import PARTLY_LEFT
from talweg.compression import Compression
from talweg.errors import InvalidArgument, WrongType
from talweg.torch._averager import GradientAverager
from talweg.torch._compressed import compressing_of
from talweg.torch._forward_overlap import ForwardOverlap, require_alone
from talweg.torch._state import broadcast_optimizer_state, broadcast_parameters
from talweg.torch._step_hooks import is_inner_step
from talweg.torch._uncompiled import keep_out_of_graphs

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


class _DistributedMethods:
    """The methods that DistributedOptimizer adds to an optimizer's class."""

    _talweg: GradientAverager
    _talweg_skip: bool
    # Whether step() may decide by what its closure returns, and gets averages.
    _talweg_may_decide: bool
    _talweg_joins: bool  # The loop in join() runs.
    _talweg_original: type[torch.optim.Optimizer]
    _talweg_hooks: list[RemovableHandle]

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        """Pickles or copies the plain optimizer: the averages belong to this process."""
        self.synchronize_parameters()
        # object.__new__ makes an object of the plain class, and pickle then gives it the state.
        return object.__new__, (self._talweg_original,), self.__getstate__()  # type: ignore

    def synchronize(self) -> None:
        """Returns when the gradients are averages over all ranks.

        backward() has already done this when it returns, so a call is rarely needed. The method
        serves programs that were written for BytePS or Horovod.
        """
        self._talweg.guard(self._talweg.exchange.synchronize)

    def synchronize_parameters(self) -> None:
        """Returns when every parameter has had its last update; see `overlap_forward`."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Makes step() use the gradients as they are, within this context."""
        self._talweg_skip = True
        try:
            yield
        finally:
            self._talweg_skip = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as the optimizer does, and averages its gradients. Every rank calls it."""
        self.synchronize_parameters()
        super().add_param_group(param_group)  # type: ignore[misc]
        groups: list[dict[str, Any]] = self.param_groups  # type: ignore[attr-defined]
        number = len(groups) - 1
        self._talweg.add((f"group.{number}.{i}", p) for i, p in enumerate(groups[-1]["params"]))

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        self._talweg.exchange.activate()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]
        self._talweg.exchange.on_zero_grad()

    def left_out_count(self) -> int:
        """Returns how often rounds went on without that gradient of this rank that was left out
        most often; see `patience`.
        """
        return self._talweg.left_out_count()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes (at least 1) accumulate before gradients are averaged."""
        self._talweg.exchange.set_passes(passes)

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Wraps a training loop in which some ranks may have fewer batches than others.

        A rank that leaves its loop early goes on taking part with zero gradients until every rank
        has left. Averages still divide by the number of all ranks. Then every rank gets the
        parameters and the optimizer state of the rank that took the most steps.

        The average of the closure's losses divides by the number of all ranks, too, so a line search
        (LBFGS) works. Its closure calls backward().
        """
        exchange = self._talweg.exchange
        exchange.require_join()
        first_step = exchange.steps
        joins, self._talweg_joins = self._talweg_joins, True
        try:
            yield
        finally:
            self._talweg_joins = joins
        self.synchronize_parameters()
        root_rank = exchange.join(first_step)
        broadcast_parameters(self._talweg.named_parameters(), root_rank)
        broadcast_optimizer_state(self, root_rank)


def decides_by_loss(optimizer: Any) -> bool:
    """Whether step() uses the closure's return value, which then must be the same at all ranks."""
    return isinstance(optimizer, torch.optim.LBFGS)


def _may_decide_by_loss(original: type[torch.optim.Optimizer]) -> bool:
    """Whether step() of that class may use what its closure returns.

    torch's own optimizers evaluate a closure once, and only return its loss; LBFGS is apart. Nobody
    knows what other code does with it.
    """
    return not str(original.step.__module__).startswith("torch.optim.")


def _average_loss(optimizer: Any, loss: Any) -> Any:
    """Returns the average of the ranks' losses in place of `loss`, if that is one number.

    The bits are the same at all ranks. An optimizer may call backward() of the result. Ranks whose
    loop in join() has ended take part where the last exchange has said so, and not otherwise.
    """
    averager = optimizer._talweg
    if optimizer._talweg_joins and not averager.exchange.has_said_loss:
        return loss  # The closure has computed no gradients.
    if decides_by_loss(optimizer):
        return averager.combine_loss(loss)
    is_tensor = isinstance(loss, torch.Tensor)
    is_number = isinstance(loss, numbers.Real) and not isinstance(loss, bool)
    if not (is_number or (is_tensor and loss.numel() == 1 and not loss.is_complex())):
        if optimizer._talweg_joins:
            averager.give_no_loss()
        return loss
    average = averager.combine_loss(loss)
    if not is_tensor or not loss.requires_grad:
        return average
    with torch.enable_grad():
        result = loss.clone()
    result.detach().copy_(average)
    return result


def _before_step(
    optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if optimizer._talweg_skip or is_inner_step(optimizer):
        return None
    exchange, guard = optimizer._talweg.exchange, optimizer._talweg.guard
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure):
        guard(exchange.synchronize)
        return None

    calls = 0
    averages = optimizer._talweg_may_decide or decides_by_loss(optimizer)

    def averaged() -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            exchange.on_evaluation()
        exchange.evaluates = averages
        try:
            loss = closure()
            guard(exchange.synchronize)
        finally:
            exchange.evaluates = False
        return guard(lambda: _average_loss(optimizer, loss)) if averages else loss

    if len(args) > 1:
        return (args[0], averaged, *args[2:]), kwargs
    return args, {**kwargs, "closure": averaged}


def _after_step(optimizer: Any, _: Any, __: Any) -> None:
    if not is_inner_step(optimizer):
        optimizer._talweg.exchange.on_step()


class _OverlappedMethods(_DistributedMethods):
    """The methods for `overlap_forward`, with which the next forward pass waits layer by layer."""

    _talweg_overlap: ForwardOverlap

    def step(self, closure: Any = None) -> Any:
        """Makes the step. Each parameter's update runs when forward comes to its module."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._talweg_overlap.step(at_once=self._talweg_skip)
        self._talweg.exchange.on_step()
        return loss

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        exchange = self._talweg.exchange
        if exchange.has_left_open:
            self.synchronize_parameters()
            exchange.begin()
        if not self._talweg_overlap.is_open:
            exchange.discard()
        super().zero_grad(*args, **kwargs)

    def synchronize(self) -> None:
        self.synchronize_parameters()
        self._talweg.exchange.synchronize()

    def synchronize_parameters(self) -> None:
        self._talweg_overlap.finish()

    def state_dict(self) -> dict[str, Any]:
        self.synchronize_parameters()
        return super().state_dict()  # type: ignore[misc, no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.synchronize_parameters()
        super().load_state_dict(state_dict)  # type: ignore[misc]


keep_out_of_graphs(_OverlappedMethods, _before_step, _after_step)


def name_parameters(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
) -> list[tuple[str, torch.nn.Parameter]]:
    if not hasattr(optimizer, "param_groups"):
        raise WrongType(
            f"DistributedOptimizer: optimizer is a {type(optimizer).__name__}; it must be an optimizer "
            "of torch.optim: make one of the model's parameters"
        )
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
        number, index, first = next(
            (number, index, p)
            for number, group in enumerate(optimizer.param_groups)
            for index, p in enumerate(group["params"])
            if id(p) in missing
        )
        raise InvalidArgument(
            f"{len(missing)} of the optimizer's {len(owned)} parameters are not in named_parameters; "
            f"the first is parameter {index} of group {number}, of shape {list(first.shape)}: pass "
            "model.named_parameters() of all its models"
        )
    return named


def DistributedOptimizer(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    name: str = "optimizer",
    overlap_forward: torch.nn.Module | None = None,
    patience: float | None = None,
    compression: Compression | None = None,
) -> OptimizerT:
    """Makes `optimizer` average its gradients over all ranks; returns the same object.

    A gradient leaves as soon as backward has it. The gradients of the first layers overtake the
    others. When backward() returns, the averages stand in `.grad`, so clipping, GradScaler, LR
    schedulers and closures work as in one process. With `backward_passes_per_step` n, every n-th
    backward does this, and the others only accumulate. zero_grad() drops what was accumulated.
    step() averages gradients that no backward has computed, for instance assigned ones. If other
    code reads these before step() (clipping, or GradScaler, which may skip a rank's step), call
    synchronize() first.

    `named_parameters` is model.named_parameters(). Without it parameters are named by their order,
    which must then be the same at every rank. Every rank must call backward the same number of
    times (see join() for uneven data). A second such optimizer in one process needs another `name`.
    If it has the same parameters, it takes them over. Parameters may be frozen, thawed and added
    (add_param_group) between steps, at all ranks alike. A rank that goes on after an error in
    backward() calls synchronize() and step(), because the others wait for its gradients. A second
    call for the same optimizer distributes it anew, with the new arguments. A pickle or a copy is
    the plain optimizer. LBFGS uses the loss to decide how often to evaluate, so it gets the average
    of all ranks' losses. So does step(closure) of any optimizer whose step() is not torch's own,
    for it may be a line search: every rank then evaluates equally often. For this the closure
    returns a number or a tensor of one element at every rank, and step() returns the average, too.
    Ranks could compare how often they evaluate instead. But that takes as many rounds, and can only
    fail. Other optimizers of torch evaluate once: step(closure) returns this rank's own loss, and
    costs no round. With several such optimizers, a rank's backward may leave some of them out
    of a pass. But two ranks may not leave out different ones: each would wait in backward() for the
    other. Ranks of one node sum larger gradients in memory that they share, and `.grad` then lies
    there. A gradient that is kept beyond its step keeps its values; a forked child sees zeros.

    `overlap_forward`, a model, hides more of the communication: neither backward() nor step()
    waits. The next forward pass of that model waits module by module, and updates each module's
    parameters just before the module runs. So the first layer works while the last layer's gradient
    is under way. The weights are the same to the last bit. It needs an optimizer whose update of a
    parameter depends on that parameter alone (SGD, Adam and similar ones, not LBFGS). Before other
    code reads gradients (clipping, GradScaler), and before a second backward() of a step, call
    synchronize(), which waits. Before code other than the model's forward and state_dict() reads
    weights, call synchronize_parameters(). After step() gradients are gone, as after zero_grad().

    `patience`, in seconds, from 0.001 to 65, lets steps go on without late ranks
    (docs/collectives.md, "Late ranks"). When half of the nodes have a gradient (in a job of one
    node: half of the ranks), the others have so long to come. Then the average is made without the
    ranks that are late, and divides by all ranks. What a late rank gave is added to its gradient of
    the next step. left_out_count() says how often that was so. The average of a closure's losses
    waits for all ranks. Gradients of GradScaler keep the scale that they were computed with: what
    comes late is divided by the next step's. So keep the scale fixed (growth_interval=2**31 - 1, and
    choose init_scale so that no gradient overflows), or leave out patience or GradScaler.

    `compression`, a value of talweg.compression that is the same at all ranks, compresses each large
    f32 gradient before it leaves (docs/compression.md), for links that are slower than this rank
    compresses. What it takes away is added to the next gradient. Sparse gradients stay as they are.
    """
    named = name_parameters(optimizer, named_parameters)
    patience_ms, compressing = milliseconds_of(patience), compressing_of(compression)
    distributed: Any = distribute(
        optimizer,
        lambda waits: GradientAverager(
            named,
            backward_passes_per_step,
            name,
            waits,
            patience_ms=patience_ms,
            compressing=compressing,
        ),
        overlap_forward,
    )
    distributed._talweg_may_decide = _may_decide_by_loss(distributed._talweg_original)
    return optimizer


def distribute(
    optimizer: OptimizerT,
    make_averager: Callable[[bool], GradientAverager],
    overlap_forward: torch.nn.Module | None = None,
) -> OptimizerT:
    """Does the same as DistributedOptimizer(). `make_averager` takes the averager's `waits`."""
    overlaps = overlap_forward is not None
    if overlaps:
        require_alone(optimizer)  # Before anything is changed.
    take_back(optimizer)
    if overlaps and "step" in vars(optimizer):
        raise InvalidArgument(
            "overlap_forward: a learning rate scheduler has wrapped this optimizer's step() "
            "already: make schedulers after DistributedOptimizer()"
        )
    averager = make_averager(not overlaps)  # It must not keep the optimizer alive.
    original = type(optimizer)
    methods = _OverlappedMethods if overlaps else _DistributedMethods
    optimizer.__class__ = type(original.__name__, (methods, original), {})
    optimizer._patch_step_function()  # Users' step hooks run around this step, once.
    distributed: Any = optimizer
    distributed._talweg = averager
    # Not when Python collects garbage, which each rank does at another time.
    distributed._talweg_end = weakref.finalize(optimizer, averager.end)
    distributed._talweg_end.atexit = False
    distributed._talweg_skip = distributed._talweg_joins = False
    distributed._talweg_may_decide = False  # As with Horovod and BytePS.
    distributed._talweg_original = original
    hooks: list[RemovableHandle] = []
    distributed._talweg_hooks = hooks
    if overlap_forward is not None:
        overlap = ForwardOverlap(optimizer, original, averager, overlap_forward)
        distributed._talweg_overlap = overlap
        hooks += overlap.hooks
    else:
        hooks.append(optimizer.register_step_pre_hook(_before_step))
        hooks.append(optimizer.register_step_post_hook(_after_step))
    return optimizer


def take_back(optimizer: Any) -> None:
    """Undoes an earlier distribute() of `optimizer`. Raises InvalidArgument if its ranks make steps
    of their own: then they may have different parameters, and a gradient says nothing of that.
    """
    if vars(optimizer).keys() & {"_talweg_local", "_talweg_asynchronous"}:
        raise InvalidArgument(
            "this optimizer's ranks make steps of their own (LocalSGD, DiLoCo or "
            "AsynchronousOptimizer): call its flush() at all ranks, and make a plain optimizer to "
            "distribute"
        )
    undo(optimizer)


def undo(optimizer: Any) -> None:
    """Makes the optimizer the plain one that it was."""
    original = vars(optimizer).get("_talweg_original")
    if original is None:
        return
    if isinstance(optimizer, _OverlappedMethods):
        if "step" in vars(optimizer):
            raise InvalidArgument(
                "this optimizer has been distributed with overlap_forward, and a learning rate "
                "scheduler has wrapped its step() since then: make both anew"
            )
        if not optimizer._talweg.client.is_closed:
            optimizer.synchronize_parameters()
    averager = vars(optimizer).get("_talweg")
    is_there = averager is not None and not averager.client.is_closed
    if is_there and averager.exchange.state in PARTLY_LEFT:
        raise InvalidArgument(
            "this optimizer has been distributed before, and its last backward() has ended with an "
            "error: every rank calls its synchronize() and zero_grad() before it is distributed anew"
        )
    for hook in optimizer._talweg_hooks:
        hook.remove()
    if averager is not None:
        optimizer._talweg_end()
    optimizer.__class__ = original
    for name in [name for name in vars(optimizer) if name.startswith(("_talweg", "_horovod"))]:
        delattr(optimizer, name)
