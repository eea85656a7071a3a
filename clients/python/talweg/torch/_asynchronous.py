# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose ranks make steps at their own pace: docs/asynchronous.md."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from talweg._collectives.process_sets import ProcessSet
from talweg._exchange.asynchronous import AsynchronousSteps, require_whole
from talweg.errors import InvalidArgument
from talweg.torch._local_agreement import bytes_of
from talweg.torch._local_parts import Part, require_dense, slices_of, zeros_for
from talweg.torch._optimizer import OptimizerT, name_parameters
from talweg.torch._step_hooks import is_inner_step
from talweg.torch._uncompiled import keep_out_of_graphs

_CALLER = "AsynchronousOptimizer"


class _Parameters:
    """A model's parameters. See asynchronous.Parameters."""

    def __init__(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        for each, parameter in named:
            require_dense(_CALLER, each, parameter)
        self._parts = [
            Part(each, parameter)
            for each, parameter in named
            if parameter.numel() > 0 and (parameter.is_floating_point() or parameter.is_complex())
        ]
        # The parameters as they were after the last merge.
        self._base = zeros_for(self._parts, "cpu")

    def zeros(self) -> np.ndarray:
        return zeros_for(self._parts, "cpu").numpy()

    def texts(self) -> list[str]:
        return list(map(str, self._parts))

    def pieces(self) -> list[np.ndarray]:
        return [bytes_of(part.parameter).numpy() for part in self._parts]

    @torch.no_grad()
    def put(self, place: int, data: np.ndarray) -> None:
        parameter = self._parts[place].parameter
        parameter.copy_(torch.from_numpy(data).view(parameter.dtype).view(parameter.shape))

    @torch.no_grad()
    def begin(self, shared: np.ndarray) -> None:
        for part, base in slices_of(self._parts, self._base):
            base.view(part.local.shape).copy_(part.local)
        shared[...] = self._base.numpy()

    @torch.no_grad()
    def merge(self, shared: np.ndarray, movement: np.ndarray) -> None:
        moved, x0 = torch.from_numpy(movement), torch.from_numpy(shared)
        for (part, elements), (_, base), (_, together) in zip(
            slices_of(self._parts, moved),
            slices_of(self._parts, self._base),
            slices_of(self._parts, x0),
        ):
            local = part.local
            shape = local.shape
            torch.sub(local.to("cpu", moved.dtype), base.view(shape), out=elements.view(shape))
            local.copy_(together.view(shape) + elements.view(shape))
            base.view(shape).copy_(local)  # Rounded, if the parameter has 16 bits.

    def fetch(self) -> None:
        """Does nothing: these are the parameters themselves."""

    def give_back(self) -> None:
        """Does nothing."""


class _AsynchronousMethods:
    """The methods that AsynchronousOptimizer adds to an optimizer's class."""

    _talweg_asynchronous: AsynchronousSteps
    _talweg_original: type[torch.optim.Optimizer]
    _talweg_hooks: list[RemovableHandle]

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        """Pickles or copies the plain optimizer: the meetings belong to this process."""
        # object.__new__ makes an object of the plain class, and pickle then gives it the state.
        return object.__new__, (self._talweg_original,), self.__getstate__()  # type: ignore

    def flush(self) -> None:
        """Makes the parameters equal at all ranks, with all steps of all of them.

        Every rank calls it after its last step, and waits there for the others. Ranks may have made
        different numbers of steps. Evaluate, save and load parameters after it.
        """
        self._talweg_asynchronous.flush()

    # For programs that were written for optimizers that average gradients.

    def synchronize(self) -> None:
        """Does nothing: gradients are this rank's own."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Returns a context that changes nothing."""
        return contextlib.nullcontext()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Does nothing: a rank counts its backward passes as in one process."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises InvalidArgument: give AsynchronousOptimizer() an optimizer that has all groups."""
        raise InvalidArgument(
            f"{_CALLER}: add_param_group() after the call: make an optimizer with all its groups, "
            "flush() this one at all ranks, and call AsynchronousOptimizer() for the new one"
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._talweg_asynchronous.require_resting("load_state_dict()")
        super().load_state_dict(state_dict)  # type: ignore[misc]


def _before_step(optimizer: Any, _: Any, __: Any) -> None:
    if not is_inner_step(optimizer):
        optimizer._talweg_asynchronous.before_step()


def _after_step(optimizer: Any, _: Any, __: Any) -> None:
    if not is_inner_step(optimizer):
        optimizer._talweg_asynchronous.after_step()


keep_out_of_graphs(_AsynchronousMethods, _before_step, _after_step)


def is_asynchronous(optimizer: Any) -> bool:
    return isinstance(optimizer, _AsynchronousMethods)


def AsynchronousOptimizer(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    *,
    ahead: int = 1,
    lead: int | None = None,
    name: str = "asynchronous",
    process_set: ProcessSet | None = None,
) -> OptimizerT:
    """Makes `optimizer` add its steps to those of all other ranks, without waiting for any rank.
    Returns the same object.

    Each rank makes steps at its own pace, with its own gradients. A thread meets the other ranks
    again and again, and adds up how far the steps of each have moved its parameters. So each step of
    each rank moves the parameters of all of them: n ranks need about 1/n of the learning rate of
    one process. The optimizer's state and buffers stay each rank's own. Any optimizer will do.

    Every rank calls flush() after its last step. Then all have equal parameters. Ranks may make
    different numbers of steps. The first step makes all ranks' parameters those of the lowest rank.

    `ahead`: how many steps a rank may make while one of its movements is under way. With 0 a step
    is in the global parameters when step() returns. `lead`: how many more steps a rank may make than
    the slowest one; None for any number.

    `named_parameters` is model.named_parameters(). Without it parameters are named by their order,
    which must then be the same at every rank. A second such optimizer in one process needs another
    `name`. docs/asynchronous.md says more.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgument(
            f"{_CALLER}: the optimizer is a {type(optimizer).__name__}; it must be a "
            "torch.optim.Optimizer"
        )
    require_whole(_CALLER, ahead, lead)
    if "_talweg_original" in vars(optimizer):
        raise InvalidArgument(
            f"{_CALLER}: this optimizer is one of Talweg's already: give a plain optimizer of torch"
        )
    parameters = _Parameters(name_parameters(optimizer, named_parameters))
    steps = AsynchronousSteps(_CALLER, parameters, ahead, lead, name, process_set)
    original, asynchronous = type(optimizer), optimizer
    optimizer.__class__ = type(original.__name__, (_AsynchronousMethods, original), {})
    made: Any = asynchronous
    made._talweg_asynchronous, made._talweg_original = steps, original
    made._talweg_hooks = [
        optimizer.register_step_pre_hook(_before_step),
        optimizer.register_step_post_hook(_after_step),
    ]
    return optimizer
