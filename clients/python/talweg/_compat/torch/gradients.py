# SPDX-License-Identifier: Apache-2.0
"""The averager of Talweg's optimizer, with the choices that BytePS and Horovod offer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from talweg._calls import Calls
from talweg._client import Handle, group_of
from talweg._compat.torch.compression import NoneCompressor
from talweg._declaration import Op
from talweg._exchange.adapter import Pushed, Tensor
from talweg.errors import InvalidArgument
from talweg.torch import _sparse, _tensors
from talweg.torch._averager import GradientAverager
from talweg.torch._collectives import COLLECTIVES


@dataclass(frozen=True)
class Choices:
    """How gradients are combined."""

    op: Op = Op.AVERAGE
    compression: Any = NoneCompressor
    prescale: float = 1.0  # The factor before the sum.
    postscale: float = 1.0  # The factor after the sum.
    sparse_as_dense: bool = False  # Sparse gradients are pushed as dense ones.
    members: Any = None  # A process set; None: all ranks.
    gathers_sparse: bool = False  # The rows of sparse gradients are gathered, and stay sparse.

    @property
    def are_usual(self) -> bool:
        return (
            self.op is Op.AVERAGE
            and self.compression is NoneCompressor
            and self.prescale == self.postscale == 1.0
            and self.members is None
        )


class ChosenAverager(GradientAverager):
    """A GradientAverager that combines gradients as `choices` say."""

    def __init__(
        self,
        named_parameters: list[tuple[str, torch.nn.Parameter]],
        passes: int,
        name: str,
        choices: Choices,
        waits: bool = True,
        before_backward: Callable[[bool], None] | None = None,
    ) -> None:
        """`before_backward` is called at a pass's first gradient: True if `.grad` is averaged. A
        method is called as long as its object lives, which may hold the optimizer.
        """
        self._choices = choices
        self._before_backward = Calls()
        if before_backward is not None:
            self._before_backward.add(before_backward)
        # The number of sparse dimensions of each sparse gradient, by its parameter's index.
        self._sparse: dict[int, int] = {}
        super().__init__(named_parameters, passes, name, waits, choices.members)
        averagers.add(self)

    def watch_pass(self) -> None:
        self._before_backward(self.exchange.averaged)
        super().watch_pass()

    def declare(self, tensors: Sequence[Tensor]) -> None:
        if self._choices.are_usual:  # Other choices declare each tensor with its push.
            super().declare(tensors)

    def start(self, tensor: Tensor, has_gradient: bool) -> Pushed:
        choices, index = self._choices, tensor.index
        if not choices.gathers_sparse or choices.sparse_as_dense:
            return super().start(tensor, has_gradient)
        gradient = self.parameters[index].grad if has_gradient else None
        if gradient is not None and gradient.layout is torch.sparse_coo:
            self._sparse[index] = gradient.sparse_dim()
        if index not in self._sparse:
            return super().start(tensor, has_gradient)
        handle = self._start_gathers(tensor, gradient)
        return Pushed(handle, gradient, None if gradient is None else gradient._version)

    def _start_gathers(self, tensor: Tensor, gradient: torch.Tensor | None) -> Handle:
        """Joins the ranks' rows. A rank without a gradient, or that has joined, gives no rows."""
        choices, parameter = self._choices, self.parameters[tensor.index]
        if choices.op not in (Op.AVERAGE, Op.SUM):
            raise InvalidArgument(
                f"the gradient of '{self.exchange.name_of(tensor.index)}' is sparse: only averages "
                "and sums of such ones are offered; use sparse_as_dense=True"
            )
        dimensions = self._sparse[tensor.index]
        if gradient is None:
            indices = torch.empty((0, dimensions), dtype=torch.int64, device=parameter.device)
            values = parameter.detach().new_empty((0, *parameter.shape[dimensions:]))
        else:
            if gradient.layout is not torch.sparse_coo:
                gradient = gradient.to_sparse(dimensions)
            indices, values = _sparse.rows_of(gradient.detach())
        pushed, context = choices.compression.compress(values)
        if choices.prescale != 1.0:
            pushed = pushed * choices.prescale
        factor = choices.postscale
        if choices.op is Op.AVERAGE:
            factor = factor / self.group.size
        handle = group_of(
            self.client,
            [
                COLLECTIVES.all_gather_of_some_async(
                    rows,
                    name=f"{tensor.name}.{what}",
                    process_set=self.process_set,
                    priority=tensor.priority,
                )
                for what, rows in (("indices", indices), ("values", pushed))
            ],
        )

        def join() -> None:
            all_indices, all_values = handle.result
            all_values = choices.compression.decompress(all_values, context)
            if factor != 1.0:
                all_values = all_values * factor
            handle.result = _sparse.of_rows(all_indices, all_values, parameter.shape)

        return _tensors.and_then(handle, join)

    def dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if not self._choices.sparse_as_dense:
            return super().dense(index, gradient)
        self._sparse[index] = gradient.sparse_dim()
        return gradient.to_dense()

    def put(self, index: int, average: torch.Tensor) -> None:
        dimensions = self._sparse.get(index)
        if dimensions is not None and average.layout is torch.strided:
            average = average.to_sparse(dimensions)
        super().put(index, average)

    def run_loss(self, value: np.ndarray, op: Op = Op.AVERAGE) -> None:
        choices = self._choices
        value *= choices.prescale
        super().run_loss(value, choices.op)
        value *= choices.postscale

    def start_round(self, tensor: Tensor, gradient: torch.Tensor) -> Handle:
        choices = self._choices
        if choices.are_usual:
            return super().start_round(tensor, gradient)
        pushed, context = choices.compression.compress(gradient.detach())
        if choices.prescale != 1.0:
            pushed = pushed * choices.prescale
        name = f"{tensor.name}.{choices.op.name.lower()}.{pushed.dtype}"
        handle = _tensors.start(
            self.client,
            pushed,
            pushed,
            choices.op,
            name,
            tensor.priority,
            process_set=self.process_set,
            says_shape=False,
        )

        def restore() -> None:
            handle.result = choices.compression.decompress(handle.result, context)
            if choices.postscale != 1.0:
                handle.result = handle.result * choices.postscale

        return _tensors.and_then(handle, restore)


class _Averagers:
    """The averagers of this process."""

    def __init__(self) -> None:
        self._all: list[weakref.ref[ChosenAverager]] = []

    def add(self, averager: ChosenAverager) -> None:
        self._all.append(weakref.ref(averager))

    def forget_accumulated(self) -> None:
        """Drops the gradients that this rank has accumulated: it takes no step with them."""
        self._all = [each for each in self._all if each() is not None]
        for each in self._all:
            averager = each()
            if averager is not None:
                averager.exchange.forget_accumulated()


averagers = _Averagers()


def check_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None
) -> list[tuple[str, torch.nn.Parameter]] | None:
    """Returns the caller's (name, parameter) pairs, or None; raises ValueError for bad ones."""
    if named_parameters is None:
        return None
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()"
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"parameter names must be unique; found twice: {', '.join(twice)}")
    return pairs


_numbers: dict[tuple[int, str], int] = {}


def next_name(client: Any, kind: str) -> str:
    """Returns a new name for each optimizer of a client. Every rank gets the same ones."""
    for key in [key for key in _numbers if key[0] != id(client)]:  # Other clients are closed.
        del _numbers[key]
    number = _numbers[id(client), kind] = _numbers.get((id(client), kind), 0) + 1
    return kind if number == 1 else f"{kind}.{number}"
