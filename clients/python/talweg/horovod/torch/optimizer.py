# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer with Horovod's signature."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from talweg._arguments import factor_of, passes_of
from talweg._call_site import warn
from talweg._compat.names import names
from talweg._compat.torch import gradients
from talweg._compat.torch.compression import Compression
from talweg._declaration import Op
from talweg.errors import InvalidArgument
from talweg.horovod.common import basics
from talweg.horovod.common.basics import Average
from talweg.horovod.common.process_sets import (
    ProcessSet,
    global_process_set,
    members_of,
    require_set,
)
from talweg.horovod.torch._own_gradients import (
    combine_steps,
    leave_outside,
    require_own_step,
)
from talweg.torch._optimizer import distribute, name_parameters

__all__ = ["DistributedOptimizer"]

_TOO_MANY = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
_ZEROED = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). This is prohibited as it can cause a race condition."
)
_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). The gradients are not reduced again."
)


class _Rules:
    """Horovod's rules for when an optimizer may be called, on top of Talweg's.

    A job of one rank may break those that prevent a race between ranks.
    """

    def __init__(self) -> None:
        self.optimizer: Any = None
        self._told_to_wait = False  # Whether synchronize() was called since the last step.

    @property
    def _is_among_several(self) -> bool:
        return bool(self.optimizer._talweg.client.size > 1)

    def before_backward(self, is_reduced: bool) -> None:
        if is_reduced and not self._told_to_wait and self._is_among_several:
            raise AssertionError(_TOO_MANY)

    def on_synchronize(self) -> None:
        self._told_to_wait = True

    def on_step(self, *_: Any) -> None:
        if self._told_to_wait and not self.optimizer._talweg_skip:
            warn(_TWICE)
        self._told_to_wait = False

    def on_zero_grad(self) -> None:
        is_reduced = self.optimizer._talweg.exchange.averaged
        if is_reduced and not self._told_to_wait and self._is_among_several:
            raise AssertionError(_ZEROED)

    def on_load(self) -> None:
        self._told_to_wait = False


class _HorovodMethods:
    """The methods that Horovod's optimizer has besides Talweg's."""

    _horovod: _Rules
    _talweg: Any

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Returns the parameters' names, for programs that know Horovod's own code."""
        averager = self._talweg
        return {
            parameter: averager.exchange.name_of(index)
            for index, parameter in enumerate(averager.parameters)
        }

    @property
    def backward_passes_per_step(self) -> int:
        passes: int = self._talweg.exchange.passes
        return passes

    def synchronize(self) -> None:
        """Returns when the gradients are reduced. They already are when backward() returns."""
        super().synchronize()  # type: ignore[misc]
        self._horovod.on_synchronize()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        self._horovod.on_zero_grad()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads the optimizer's state and begins a new step: earlier gradients are not used."""
        self._horovod.on_load()
        self._talweg.exchange.on_zero_grad()
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]


def _check_groups(num_groups: int, groups: Any) -> None:
    """Checks the groups, which have no effect: small gradients share frames anyway."""
    if not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError(f"num_groups is {num_groups!r}; it must be a number of 0 or more")
    if num_groups:
        warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning)
    if groups is None:
        return
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups <= 0:
            raise ValueError(f"groups is {groups}; a number of groups must be larger than 0")
        return
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise ValueError("groups should be a number, or a list of lists of parameters")
    seen = set()
    for group in groups:
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise ValueError("groups should be a number, or a list of lists of parameters")
            if id(parameter) in seen:
                raise ValueError("a parameter can only be in one of the groups")
            seen.add(id(parameter))


def _choices(
    compression: Any, op: int, factor: float, sparse_as_dense: bool, process_set: ProcessSet
) -> gradients.Choices:
    wanted = basics.op_of(op, None, "DistributedOptimizer")
    factor = factor_of(factor, "DistributedOptimizer: gradient_predivide_factor")
    if factor != 1.0:
        if wanted is not Op.AVERAGE:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if factor <= 0:
            raise InvalidArgument(
                f"gradient_predivide_factor is {factor}; it must be larger than 0"
            )
    require_set(process_set, "DistributedOptimizer")
    included = process_set.included() is not False
    members = members_of(process_set, "DistributedOptimizer") if included else None
    # The average divides by the number of ranks in each step, because more ranks may come.
    return gradients.Choices(wanted, compression, 1.0 / factor, factor, sparse_as_dense, members)


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes `optimizer` reduce its gradients over all ranks; returns the same object.

    The optimizer gets synchronize(), skip_synchronize() and set_backward_passes_per_step(n). When
    backward() returns, `.grad` holds the reduced gradients. A rank outside `process_set` steps with
    its own gradients, and its optimizer has the same methods. These arguments become attributes:
    backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense and process_set. See
    talweg.torch.DistributedOptimizer().
    """
    basics.rank()
    pairs = gradients.check_names(optimizer, named_parameters)
    _check_groups(num_groups, groups)
    passes = passes_of(backward_passes_per_step)
    combines_steps = basics.is_adasum(op)
    require_own_step(optimizer, combines_steps)
    if combines_steps and gradient_predivide_factor != 1.0:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    rule = Average if combines_steps else op
    choices = _choices(compression, rule, gradient_predivide_factor, sparse_as_dense, process_set)
    arguments = {
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "sparse_as_dense": sparse_as_dense,
        "process_set": process_set,
    }
    named = name_parameters(optimizer, pairs)
    if process_set.included() is False:
        arguments["_parameter_names"] = {parameter: name for name, parameter in named}
        return leave_outside(optimizer, passes, arguments)
    if combines_steps:
        gradients.require_cast(compression, "op=Adasum")
        arguments["_parameter_names"] = {parameter: name for name, parameter in named}
        of = (compression, passes, process_set, arguments)
        return combine_steps(optimizer, named, *of)
    rules = _Rules()
    # The name is made of the set's ranks, not of its id, which another set may use later.
    kind = "horovod" if choices.members is None else f"horovod{choices.members.suffix}"
    name = names.next(kind, named)
    distributed: Any = distribute(
        optimizer,
        lambda waits: gradients.ChosenAverager(
            named,
            passes,
            name,
            choices,
            waits,
            rules.before_backward,
            basics.internal,
        ),
    )
    rules.optimizer = distributed
    distributed._horovod = rules
    talwegs = type(distributed)
    distributed.__class__ = type(talwegs.__name__, (_HorovodMethods, talwegs), arguments)
    distributed._talweg_hooks.append(distributed.register_step_pre_hook(rules.on_step))
    return distributed
