# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose ranks make steps of their own, and meet now and then: docs/local_steps.md."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from talweg._collectives.process_sets import ProcessSet
from talweg.errors import InvalidArgument
from talweg.torch._local_rule import Rule
from talweg.torch._local_steps import LocalSteps
from talweg.torch._optimizer import OptimizerT, undo
from talweg.torch._step_hooks import is_inner_step
from talweg.torch._uncompiled import keep_out_of_graphs

# The entry of a state_dict(), beside those of torch.
_ENTRY = "talweg_local"


class _LocalMethods:
    """The methods that LocalSGD and DiLoCo add to an optimizer's class."""

    # GradScaler then calls step() also where it finds infinite gradients. So all ranks count.
    _step_supports_amp_scaling = True
    _talweg_local: LocalSteps
    _talweg_unscales: bool
    _talweg_hidden: list[tuple[torch.nn.Parameter, torch.Tensor]]
    _talweg_original: type[torch.optim.Optimizer]
    _talweg_hooks: list[RemovableHandle]

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        """Pickles or copies the plain optimizer: what ranks share belongs to this process."""
        # object.__new__ makes an object of the plain class, and pickle then gives it the state.
        return object.__new__, (self._talweg_original,), self.__getstate__()  # type: ignore

    def flush(self) -> None:
        """Makes the parameters equal at all ranks. All ranks call it after the same step.

        What local steps have changed since the last synchronisation becomes the ranks' mean. Call
        it at the end of training. It does nothing where `is_synchronized` is true.
        """
        self._talweg_local.flush()

    def global_parameters(self) -> AbstractContextManager[None]:
        """Gives the model the global parameters, which are equal at all ranks, within a context.

        Nothing travels. Evaluate or save the model there. Make no steps there, and load nothing
        into the model: the context ends with InvalidArgument if its parameters have changed.
        """
        return self._talweg_local.lend()

    @property
    def is_synchronized(self) -> bool:
        """Whether the parameters are the global ones, and nothing is under way.

        False until ranks have agreed on the global ones: before the first step, and after a state
        was loaded or parameters were added.
        """
        return self._talweg_local.is_synchronized

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as the optimizer does. Every rank calls it. The model has its parameters."""
        super().add_param_group(param_group)  # type: ignore[misc]
        self._talweg_local.add()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        return {**state, _ENTRY: self._talweg_local.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        plain = {key: value for key, value in state_dict.items() if key != _ENTRY}
        entry = state_dict.get(_ENTRY)
        self._talweg_local.require_fits(entry)  # Before anything is loaded.
        super().load_state_dict(plain)  # type: ignore[misc]
        self._talweg_local.load_state_dict(entry)


def _before_step(optimizer: Any, _: Any, __: Any) -> None:
    if is_inner_step(optimizer):
        return
    optimizer._talweg_local.before_step()
    if optimizer._talweg_unscales and getattr(optimizer, "found_inf", None) is not None:
        _unscale(optimizer)


def _unscale(optimizer: Any) -> None:
    """Does what GradScaler does for other optimizers. Hides infinite gradients from step(), which
    then changes nothing.
    """
    used = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    found_inf, scale = optimizer.found_inf, optimizer.grad_scale
    # The optimizer's own step() does not know them. GradScaler deletes them after the step.
    optimizer.found_inf = optimizer.grad_scale = None
    if float(found_inf):
        optimizer._talweg_hidden = [(parameter, parameter.grad) for parameter in used]
        for parameter in used:
            parameter.grad = None
    elif scale is not None:
        inverse = scale.double().reciprocal().float()
        with torch.no_grad():
            for parameter in used:
                grad = parameter.grad
                numbers = grad._values() if grad.layout is torch.sparse_coo else grad
                numbers.mul_(inverse.to(numbers.device))


def _after_step(optimizer: Any, _: Any, __: Any) -> None:
    if is_inner_step(optimizer):
        return
    for parameter, gradient in optimizer._talweg_hidden:
        parameter.grad = gradient
    optimizer._talweg_hidden = []
    optimizer._talweg_local.after_step()


keep_out_of_graphs(_LocalMethods, _before_step, _after_step)


def local_steps_of(optimizer: Any) -> LocalSteps | None:
    """Returns the local steps of an optimizer; None if it makes none."""
    return optimizer._talweg_local if isinstance(optimizer, _LocalMethods) else None


def _make_local(
    caller: str,
    model: torch.nn.Module,
    optimizer: OptimizerT,
    rule: Rule,
    name: str,
    process_set: ProcessSet | None,
) -> OptimizerT:
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(
            f"{caller}: model is a {type(model).__name__}; it must be the torch.nn.Module whose "
            "parameters the optimizer has"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgument(
            f"{caller}: the optimizer is a {type(optimizer).__name__}; it must be a "
            "torch.optim.Optimizer"
        )
    earlier = local_steps_of(optimizer)
    if earlier is None and "_talweg_original" in vars(optimizer):
        raise InvalidArgument(
            f"{caller}: this optimizer is a DistributedOptimizer, whose ranks meet in each step: "
            "give the plain optimizer"
        )
    steps = LocalSteps(caller, model, optimizer, rule, name, process_set)
    if earlier is not None:
        earlier.end()
    undo(optimizer)
    local: Any = optimizer
    unscales = not getattr(optimizer, "_step_supports_amp_scaling", False)
    original = type(optimizer)
    optimizer.__class__ = type(original.__name__, (_LocalMethods, original), {})
    local._talweg_local, local._talweg_unscales = steps, unscales
    local._talweg_hidden = []
    local._talweg_original = original
    local._talweg_hooks = [
        optimizer.register_step_pre_hook(_before_step),
        optimizer.register_step_post_hook(_after_step),
    ]
    return optimizer


def LocalSGD(
    model: torch.nn.Module,
    optimizer: OptimizerT,
    every: int,
    *,
    average_state: bool = False,
    average_buffers: bool = True,
    name: str = "local_steps",
    process_set: ProcessSet | None = None,
) -> OptimizerT:
    """Makes `optimizer` average the parameters over all ranks every `every` steps, and nothing in
    between. Returns the same object.

    A rank sends its parameters' worth of bytes once in `every` steps. Any optimizer will do, and
    the training loop stays as it is: step() counts. Every rank calls step(), or GradScaler's, and
    flush() equally often. Call flush() at the end of training, and evaluate within
    global_parameters(), which has equal parameters at all ranks at any time.

    The ranks begin with equal parameters: if theirs differ in the first step, all take the
    parameters and buffers of the lowest rank that has loaded a state, or else of the lowest rank.
    Floating-point buffers, such as BatchNorm's running statistics, are averaged with the
    parameters; `average_buffers=False` leaves them alone. The optimizer's state stays each rank's
    own, unless `average_state` is true. Its state_dict() has what a rank needs to go on.

    A second such optimizer in one process needs another `name`. A second call for the same
    optimizer begins anew, with the new arguments. docs/local_steps.md says more.
    """
    rule = Rule(every, average_state=average_state, average_buffers=average_buffers)
    return _make_local("LocalSGD", model, optimizer, rule, name, process_set)


def DiLoCo(
    model: torch.nn.Module,
    inner_optimizer: OptimizerT,
    every: int,
    *,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    nesterov: bool = True,
    fragments: int = 1,
    delay: int = 0,
    mix: float = 0.0,
    average_buffers: bool = True,
    name: str = "local_steps",
    process_set: ProcessSet | None = None,
) -> OptimizerT:
    """Does the same as LocalSGD(), where ranks make an outer step instead of taking the mean.

    The outer step is one of SGD with Nesterov momentum, whose gradient is the mean way that ranks
    have gone in `every` steps. The inner optimizer is AdamW as a rule.

    With `fragments` the parameters are cut into so many parts of about equal size, which travel in
    turn, each once in `every` steps. With `delay` a fragment is applied so many steps after it was
    sent: it travels while these steps compute. Then a rank keeps `mix` of its own parameters, and
    takes 1 - `mix` of the global ones.
    """
    rule = Rule(
        every,
        outer_lr,
        outer_momentum,
        nesterov,
        fragments,
        delay,
        mix,
        average_buffers=average_buffers,
    )
    return _make_local("DiLoCo", model, inner_optimizer, rule, name, process_set)
