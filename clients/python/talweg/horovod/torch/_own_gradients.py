# SPDX-License-Identifier: Apache-2.0
"""Optimizers of DistributedOptimizer() whose gradients stay this rank's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch

from talweg._arguments import passes_of
from talweg._compat.names import names
from talweg._compat.torch import collectives
from talweg.errors import InvalidArgument
from talweg.horovod.common.basics import internal
from talweg.horovod.common.process_sets import ProcessSet, members_of
from talweg.torch._optimizer import take_back


class _OwnGradients:
    """The methods of the optimizer of a rank outside the process set."""

    _horovod_passes: int
    _talweg_original: type[torch.optim.Optimizer]

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        """Pickles or copies the plain optimizer."""
        return object.__new__, (self._talweg_original,), self.__getstate__()  # type: ignore

    @property
    def backward_passes_per_step(self) -> int:
        return self._horovod_passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._horovod_passes = passes_of(passes)

    def synchronize(self) -> None:
        """Returns at once."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        yield


def _with(
    optimizer: Any, methods: type[_OwnGradients], passes: int, arguments: dict[str, Any]
) -> Any:
    original = type(optimizer)
    optimizer.__class__ = type(original.__name__, (methods, original), arguments)
    optimizer._talweg_original, optimizer._talweg_hooks = original, []
    optimizer._horovod_passes = passes
    return optimizer


def leave_outside(optimizer: Any, passes: int, arguments: dict[str, Any]) -> Any:
    """Gives the optimizer of a rank outside the process set the same methods as the others'."""
    take_back(optimizer)
    return _with(optimizer, _OwnGradients, passes, arguments)


# ----- Adasum -----


class _Steps:
    """Combines the steps that ranks make with their own gradients."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: Sequence[tuple[str, torch.Tensor]],
        compression: Any,
        process_set: ProcessSet,
    ) -> None:
        self._optimizer = optimizer
        self._compression = compression
        self._process_set = process_set
        self._name = names.next("horovod.adasum", named)
        original = type(optimizer)
        self._step = getattr(original.step, "__wrapped__", original.step)  # Without users' hooks.

    def run(self, *arguments: Any, **keywords: Any) -> Any:
        """Makes this rank's step, and puts the ranks' combined step in its place."""
        parameters = [
            parameter
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.numel() > 0
        ]
        before = [parameter.detach().clone() for parameter in parameters]
        loss = self._step(self._optimizer, *arguments, **keywords)
        with torch.no_grad():
            try:
                changes = internal(lambda: self._combined(parameters, before))
            except BaseException:
                for parameter, old in zip(parameters, before):
                    parameter.copy_(old)
                raise
            for parameter, old, change in zip(parameters, before, changes):
                parameter.copy_(old + change)
        return loss

    def _combined(
        self, parameters: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the Adasum of the ranks' changes of each parameter."""
        own = [
            self._compression.compress(parameter.detach() - old)
            for parameter, old in zip(parameters, before)
        ]
        members = members_of(self._process_set, "DistributedOptimizer")
        changes: list[Any] = [None] * len(own)
        for dtype in dict.fromkeys(change.dtype for change, _ in own):
            alike = [index for index, (change, _) in enumerate(own) if change.dtype is dtype]
            together = torch.cat([own[index][0].reshape(-1).cpu() for index in alike])
            lengths = [own[index][0].numel() for index in alike]
            name = f"{self._name}.{str(dtype).removeprefix('torch.')}"
            of = (members, "DistributedOptimizer")
            found = collectives.adasum(together, name, *of, lengths=lengths).wait()
            for index, change in zip(alike, found.split(lengths)):
                given, context = own[index]
                shaped = change.view(given.shape).to(given.device)
                changes[index] = self._compression.decompress(shaped, context)
        return changes


class _CombinedSteps(_OwnGradients):
    """The methods of an optimizer of Adasum."""

    _horovod_steps: _Steps

    def step(self, *arguments: Any, **keywords: Any) -> Any:
        """Makes the step with this rank's gradients, and combines it with the other ranks'."""
        return self._horovod_steps.run(*arguments, **keywords)

    def skip_synchronize(self) -> NoReturn:
        raise AssertionError("op=hvd.Adasum: step() combines the ranks' steps, and cannot skip it")


def require_own_step(optimizer: Any, combines_steps: bool) -> None:
    """Raises InvalidArgument if a scheduler has replaced the step() that Adasum has, or needs."""
    if "step" in vars(optimizer) and (combines_steps or isinstance(optimizer, _CombinedSteps)):
        raise InvalidArgument(
            "op=hvd.Adasum: a learning rate scheduler has wrapped this optimizer's step() already: "
            "make schedulers after hvd.DistributedOptimizer(), which is called once"
        )


def combine_steps(
    optimizer: Any,
    named: Sequence[tuple[str, torch.Tensor]],
    compression: Any,
    passes: int,
    process_set: ProcessSet,
    arguments: dict[str, Any],
) -> Any:
    """Makes `optimizer` combine the ranks' steps by Adasum; returns the same object."""
    take_back(optimizer)
    steps = _Steps(optimizer, named, compression, process_set)
    _with(optimizer, _CombinedSteps, passes, arguments)
    optimizer._horovod_steps = steps
    optimizer._patch_step_function()  # Users' step hooks run around the combined step, once.
    return optimizer
