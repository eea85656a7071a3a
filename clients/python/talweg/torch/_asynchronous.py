# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose ranks make steps at their own pace: docs/asynchronous.md."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from talweg import _client
from talweg._client import Client
from talweg._collectives.process_sets import ProcessSet
from talweg._exchange.meeting_ranks import JobRanks
from talweg._exchange.meetings import Meetings, Phase
from talweg.errors import InvalidArgument, Mismatch
from talweg.torch import _local_agreement as agreement
from talweg.torch._local_parts import Part, require_dense, slices_of, zeros_for
from talweg.torch._local_rounds import Rounds, first_that_differ
from talweg.torch._optimizer import OptimizerT, name_parameters
from talweg.torch._uncompiled import keep_out_of_graphs

_CALLER = "AsynchronousOptimizer"


class AsynchronousSteps:
    """What an optimizer's steps change, and the meetings that tell other ranks. One thread at a time."""

    def __init__(
        self,
        named: Sequence[tuple[str, torch.nn.Parameter]],
        ahead: int,
        lead: int | None,
        name: str,
        process_set: ProcessSet | None,
    ) -> None:
        for each, parameter in named:
            require_dense(_CALLER, each, parameter)
        self._parts = [
            Part(each, parameter)
            for each, parameter in named
            if parameter.numel() > 0 and (parameter.is_floating_point() or parameter.is_complex())
        ]
        self._arguments = f"ahead={ahead}, lead={lead}"
        client = _client.current()
        self._rounds = Rounds(client, _CALLER, name, process_set)
        self._ranks = JobRanks(client, name, process_set, self._rounds.title)
        # This rank's parameters as they were after the last merge.
        self._base = zeros_for(self._parts, "cpu")
        shared = zeros_for(self._parts, "cpu").numpy()
        self._meetings = Meetings(self._ranks, shared, ahead, lead)
        self._resumed = 0.0  # When the program's own part of a step has begun.
        client.call_before_closing(self._end)
        _client.call_when_replaced(self._use)

    def _use(self, client: Client) -> None:
        """Goes on with `client`, the process's new one."""
        self._rounds.use(client)
        self._ranks.use(client)
        client.call_before_closing(self._end)

    def _end(self) -> None:
        """Meets the others until all have ended, unless this rank ends by an error."""
        has_failed = sys.exc_info()[0] is not None or getattr(sys, "last_value", None) is not None
        if self._meetings.phase is Phase.MEETING and not has_failed:
            self.flush()

    def require_resting(self, call: str) -> None:
        """Raises InvalidArgument between a first step and flush()."""
        if self._meetings.phase not in (Phase.RESTING, Phase.FAILED):
            raise InvalidArgument(
                f"{self._rounds.title}: {call} while ranks meet, which would be a movement of this "
                "rank: call flush() at all ranks before"
            )

    def before_step(self) -> None:
        self._meetings.require()
        if self._meetings.phase is Phase.RESTING and self._ranks.size > 1:
            self._agree()
            self._resumed = time.monotonic()
            self._meetings.start()

    def after_step(self) -> None:
        if self._ranks.size > 1:
            self._meetings.step(self._merge, time.monotonic() - self._resumed)
            self._resumed = time.monotonic()

    def flush(self) -> None:
        """Returns when all ranks have called it. Then they have equal parameters."""
        if self._ranks.size > 1:
            self.before_step()
            self._meetings.leave(self._merge)

    @torch.no_grad()
    def _merge(self, shared: np.ndarray, movement: np.ndarray) -> None:
        """See meetings.Merge."""
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

    def _agree(self) -> None:
        """Makes the global parameters those of the lowest rank, and each rank's, too."""
        rounds = self._rounds
        parameters = [part.parameter for part in self._parts]
        names = [self._arguments, *map(str, self._parts)]
        having = hashlib.blake2b("\0".join(names).encode()).hexdigest()
        told = rounds.tell((having, agreement.digest_of(parameters)), "agree")
        if len({having for _, (having, _) in told}) > 1:
            self._raise_difference(rounds.tell(names, "names"))
        if len({digest for _, (_, digest) in told}) > 1:
            agreement.broadcast(rounds, parameters, "begin", told[0][0])
        with torch.no_grad():
            for part, base in slices_of(self._parts, self._base):
                base.view(part.local.shape).copy_(part.local)
        self._meetings.shared[...] = self._base.numpy()

    def _raise_difference(self, told: list[tuple[int, list[str]]]) -> None:
        """Raises Mismatch for the first thing that differs in what ranks have."""
        arguments = [(rank, names[0]) for rank, names in told]
        if len({each for _, each in arguments}) > 1:
            (one, here), (other, there) = first_that_differ(arguments)
            raise Mismatch(
                f"{self._rounds.title}: rank {one} has {here}, and rank {other} has {there}: give all "
                "ranks the same arguments"
            )
        agreement.raise_names(self._rounds, told)


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
    optimizer._talweg_asynchronous.before_step()


def _after_step(optimizer: Any, _: Any, __: Any) -> None:
    optimizer._talweg_asynchronous.after_step()


keep_out_of_graphs(_AsynchronousMethods, _before_step, _after_step)


def is_asynchronous(optimizer: Any) -> bool:
    return isinstance(optimizer, _AsynchronousMethods)


def _require_whole(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        wanted = "a whole number of steps, 0 or more"
        raise InvalidArgument(f"{_CALLER}: {name} is {value!r}; it must be {wanted}")


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
    _require_whole("ahead", ahead)
    if lead is not None:
        _require_whole("lead", lead)
    if "_talweg_original" in vars(optimizer):
        raise InvalidArgument(
            f"{_CALLER}: this optimizer is one of Talweg's already: give a plain optimizer of torch"
        )
    named = name_parameters(optimizer, named_parameters)
    steps = AsynchronousSteps(named, ahead, lead, name, process_set)
    original, asynchronous = type(optimizer), optimizer
    optimizer.__class__ = type(original.__name__, (_AsynchronousMethods, original), {})
    made: Any = asynchronous
    made._talweg_asynchronous, made._talweg_original = steps, original
    made._talweg_hooks = [
        optimizer.register_step_pre_hook(_before_step),
        optimizer.register_step_post_hook(_after_step),
    ]
    return optimizer
