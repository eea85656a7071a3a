# SPDX-License-Identifier: Apache-2.0
"""Averages of a model's gradients, that leave while backward still runs."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from talweg import _client
from talweg._client import Client, Handle
from talweg._declaration import Op
from talweg.errors import Busy, InvalidArgument
from talweg.torch import _cuda
from talweg.torch._backward import current_node, when_it_ends
from talweg.torch._in_place import is_worth_it, start_average
from talweg.torch._tensors import declaration_of, finish, start

# Of a gradient: its count of changes when it was no longer new.
_SEEN = "_talweg_seen"
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

    A gradient that was assigned counts as well: any that is not as it was behind the last step.

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
        self._outer: list[RemovableHandle] = []  # On nodes behind a backward within another's.
        self._exchange: _Exchange | None = None
        self._among: dict[str, Any] = {}  # For start(): among whom, unless all ranks.
        self._unused: list[int] = []  # Nobody had a gradient of these in the last exchange.
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
        self.activate()

    def add(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Between two steps, and at every rank."""
        self._additions += 1
        self._append(named_parameters)

    def activate(self) -> None:
        """Takes in which parameters require gradients by now."""
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
            when_it_ends(self._on_backward_end)
        self._touched.add(index)
        if self._backwards + 1 >= self._passes:
            self._push(index)

    def _forget_backward(self) -> None:
        """One that has ended with an error was never told to have ended."""
        self._in_backward = False
        self._leave_outer()

    def _on_backward_end(self) -> None:
        node = current_node()
        if node is not None:
            # It ran within another's node (a reentrant checkpoint's): that one goes on.
            self._outer = [
                behind.register_prehook(self._on_outer_node)
                for behind, _ in node.next_functions
                if behind is not None
            ]
            return
        self._in_backward = False
        self._backwards += 1
        if self._backwards >= self._passes:
            self.begin()
            if self._waits:
                # Behind begin() of all other averagers of this pass: another rank may wait for
                # theirs first.
                when_it_ends(self.synchronize)

    def _on_outer_node(self, _: Any) -> None:
        if self._outer:
            self._leave_outer()
            when_it_ends(self._on_backward_end)

    def _leave_outer(self) -> None:
        while self._outer:
            self._outer.pop().remove()

    def _see_gradients(self) -> None:
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None:
                setattr(gradient, _SEEN, gradient._version)

    def _touch_assigned(self) -> None:
        for index in self._hooks.keys() - self._touched:
            gradient = self.parameters[index].grad
            if gradient is None or getattr(gradient, _SEEN, None) == gradient._version:
                continue
            if gradient.layout is torch.strided and 0 in gradient.stride():
                # One value for many elements; each may come to something else.
                self.parameters[index].grad = gradient.contiguous()
            self._touched.add(index)

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
            gradient = self._without_sparsity(index, gradient)
        else:
            self._gradients[index] = (gradient, gradient._version)
        try:
            self._pushed[index] = self._start_round(index, gradient)
        except Busy as error:
            raise Busy(
                f"{error}. If this process has several DistributedOptimizers, give each a `name`"
            ) from None

    def _without_sparsity(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        raise InvalidArgument(
            f"the gradient of '{self._names[index]}' is sparse, which is not supported yet: "
            "build its layer with sparse=False"
        )

    def _start_round(self, index: int, gradient: torch.Tensor) -> Handle:
        """Starts the round of a parameter's gradient."""
        return start_average(
            self.client, gradient, self._tensor_name(index), self.priority_of(index)
        )

    def _finish_round(self, index: int, handle: Handle) -> torch.Tensor:
        """Waits for a round that _start_round() began; returns what takes the gradient's place."""
        return finish(self.client, handle)

    def begin(self, active: bool = True) -> None:
        """Pushes what backward has not; does nothing when averages are under way already."""
        if self._exchange is not None:
            return
        self.activate()
        if active:
            self._touch_assigned()
        for index in self._hooks:
            if index not in self._pushed:
                self._push(index)
        # One byte a parameter, and a last one for the rank itself.
        used = torch.zeros(len(self.parameters) + 1, dtype=torch.uint8)
        used[list(self._touched)] = 1
        used[-1] = int(active)
        name = f"{self.name}.used" + (f".{self._additions}" if self._additions else "")
        handle = start(
            self.client, used, used, Op.MAX, name, priority=_USED_PRIORITY, **self._among
        )
        self._exchange = _Exchange(self._touched, self._pushed, self._gradients, used, handle)
        self._touched, self._pushed, self._gradients, self._backwards = set(), {}, {}, 0

    def check_unchanged(self) -> None:
        """Raises InvalidArgument when a gradient is not what was pushed any more."""
        if self._exchange is None:
            return
        pushed = self._exchange.gradients
        self._check_assigned(index for index in self._hooks if index not in pushed)
        for index, (gradient, version) in pushed.items():
            if self.parameters[index].grad is gradient and gradient._version == version:
                continue
            raise InvalidArgument(
                f"the gradient of '{self._names[index]}' was changed between backward() and "
                "step(), while its average was under way (overlap_forward): call the optimizer's "
                "synchronize() before clipping, unscaling or changing gradients"
            )

    def _check_assigned(self, indices: Iterable[int]) -> None:
        """Raises InvalidArgument for gradients that are there though no rank had pushed any."""
        for index in indices:
            gradient = self.parameters[index].grad
            if gradient is not None and not hasattr(gradient, _SEEN):
                raise InvalidArgument(
                    f"the gradient of '{self._names[index]}' was assigned behind backward(), and "
                    "would be this rank's alone: assign it before backward(), whose end averages all"
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
            handle = exchange.open.get(index)
            if handle is None:
                continue
            average = self._finish_round(index, handle)
            del exchange.open[index]  # Not before: a wait that is interrupted is gone on with.
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
            self._unused = (exchange.used[:-1] == 0).nonzero().flatten().tolist()
            self._check_frozen(exchange.used)
        return taken

    def _by_arrival(self) -> list[int]:
        """What is under way, in the order in which it is likely to be there.

        Where the node's ranks sum, that is the order of the pushes: who has come first sums what is
        there while the others push. Over a network what was pushed early has come, and the first
        layers' overtake the rest.
        """
        if self._exchange is None:
            return []
        handles = self._exchange.open
        if self.client.ranks_sum:
            return list(handles)
        there = list(itertools.takewhile(lambda index: self.client.poll(handles[index]), handles))
        return there + sorted(handles.keys() - set(there))

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
        self._forget_backward()
        if self._averaged:
            self._check_assigned(self._unused)
            return
        self.begin()
        for index in self._by_arrival():
            for _, average in self.take([index]):
                self.parameters[index].grad = average
        self.take([])
        self._see_gradients()
        self._averaged = True

    def on_step(self) -> None:
        """A step uses up the averages."""
        self._averaged = False
        self._forget_backward()
        self._see_gradients()

    def on_zero_grad(self) -> None:
        """What was accumulated is gone, and so are the averages."""
        self._forget_backward()
        self._see_gradients()
        if not self._pushed:  # Else a backward has failed, and its rounds are open.
            self._averaged = False
            self._backwards = 0
            self._touched.clear()

    @property
    def has_left_open(self) -> bool:
        """Whether a backward pass has ended before the exchange that precedes its own."""
        return bool(self._pushed) and not self._in_backward

    def discard(self) -> None:
        """Nobody needs the averages that are under way."""
        self.take(range(len(self.parameters)))

    def shadow(self) -> bool:
        """Takes part in one exchange without gradients; whether any rank still had some."""
        if self._exchange is None:
            self._touched.clear()  # What was accumulated and led to no step.
        self.begin(active=False)
        exchange = self._exchange
        assert exchange is not None
        self.discard()
        return bool(exchange.used[-1])

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        return [(self._names[index], self.parameters[index].detach()) for index in self._hooks]


# By id of an active parameter, which its averager keeps alive: which one averages its gradient.
_averagers: weakref.WeakValueDictionary[int, GradientAverager] = weakref.WeakValueDictionary()
