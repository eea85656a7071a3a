# SPDX-License-Identifier: Apache-2.0
"""The averager of Talweg's optimizer, with what BytePS and Horovod let a program choose."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from talweg._client import Handle
from talweg._compat.torch.compression import NoneCompressor
from talweg._declaration import Op
from talweg._exchange_adapter import Tensor
from talweg.torch import _tensors
from talweg.torch._averager import GradientAverager


@dataclass(frozen=True)
class Choices:
    """How gradients are combined."""

    op: Op = Op.AVERAGE
    compression: Any = NoneCompressor
    prescale: float = 1.0  # Before the sum.
    postscale: float = 1.0  # After it.
    sparse_as_dense: bool = False
    members: Any = None  # A process set; None: all ranks.

    @property
    def are_usual(self) -> bool:
        return (
            self.op is Op.AVERAGE
            and self.compression is NoneCompressor
            and self.prescale == self.postscale == 1.0
            and self.members is None
        )


class ChosenAverager(GradientAverager):
    """A GradientAverager that combines gradients as it was told."""

    def __init__(
        self,
        named_parameters: list[tuple[str, torch.nn.Parameter]],
        passes: int,
        name: str,
        choices: Choices,
        waits: bool = True,
        before_backward: Callable[[bool], None] | None = None,
    ) -> None:
        """`before_backward` is told at a pass's first gradient whether averages stand in `.grad`."""
        self._choices = choices
        self._before_backward = before_backward
        super().__init__(named_parameters, passes, name, waits, choices.members)
        averagers.add(self)

    def watch_pass(self) -> None:
        if self._before_backward is not None:
            self._before_backward(self.exchange.averaged)
        super().watch_pass()

    def declare(self, tensors: Sequence[Tensor]) -> None:
        if self._choices.are_usual:  # Else each with its push.
            super().declare(tensors)

    def dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if not self._choices.sparse_as_dense:
            return super().dense(index, gradient)
        dense = self.parameters[index].grad = gradient.to_dense()
        return dense

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
        )

        def restore() -> None:
            handle.result = choices.compression.decompress(handle.result, context)
            if choices.postscale != 1.0:
                handle.result = handle.result * choices.postscale

        return _tensors.and_then(handle, restore)


class _Averagers:
    """Those of this process."""

    def __init__(self) -> None:
        self._all: list[weakref.ref[ChosenAverager]] = []

    def add(self, averager: ChosenAverager) -> None:
        self._all.append(weakref.ref(averager))

    def forget_accumulated(self) -> None:
        """This rank takes no step with the gradients that it has accumulated."""
        self._all = [each for each in self._all if each() is not None]
        for each in self._all:
            averager = each()
            if averager is not None:
                averager.exchange.forget_accumulated()


averagers = _Averagers()


def check_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None
) -> list[tuple[str, torch.nn.Parameter]] | None:
    """The (name, parameter) pairs that a caller has given; ValueError says what is wrong with them."""
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
    """Another name for each optimizer of a client, the same at every rank that makes it."""
    for key in [key for key in _numbers if key[0] != id(client)]:  # Their lives are over.
        del _numbers[key]
    number = _numbers[id(client), kind] = _numbers.get((id(client), kind), 0) + 1
    return kind if number == 1 else f"{kind}.{number}"
