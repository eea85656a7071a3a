# SPDX-License-Identifier: Apache-2.0
"""The averager of Talweg's optimizer, with the choices that BytePS and Horovod offer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from talweg._arguments import require_compressor
from talweg._calls import Calls
from talweg._client import Handle
from talweg._collectives.scaling import Factors
from talweg._compat.torch.compression import NoneCompressor
from talweg._declaration import Op
from talweg._exchange.adapter import Tensor
from talweg._exchange.compressing import Compressing
from talweg._exchange.names import COMBINED
from talweg.compression import Compression
from talweg.errors import InvalidArgument
from talweg.torch import _sparse, _tensors
from talweg.torch._averager import GradientAverager


@dataclass(frozen=True)
class Choices:
    """How gradients are combined."""

    op: Op = Op.AVERAGE
    compression: Any = NoneCompressor  # Or a value of talweg.compression, for usual choices.
    prescale: float = 1.0  # The factor before the sum.
    postscale: float = 1.0  # The factor after the sum.
    sparse_as_dense: bool = False  # Sparse gradients are pushed as dense ones.
    members: Any = None  # A process set; None: all ranks.

    def __post_init__(self) -> None:
        if not isinstance(self.compression, Compression):
            require_compressor(self.compression, "DistributedOptimizer")

    @property
    def are_usual(self) -> bool:
        return (
            self.op is Op.AVERAGE
            and self.compression is NoneCompressor
            and self.prescale == self.postscale == 1.0
            and self.members is None
        )

    @property
    def note(self) -> str:
        """What ranks compare of these choices, in words that follow a parameter's name and shape."""
        words = []
        if self.op is not Op.AVERAGE:
            words.append(f"op={self.op.name.lower()}")
        if self.compression is not NoneCompressor:
            kind = (
                self.compression if isinstance(self.compression, type) else type(self.compression)
            )
            words.append(f"compression={kind.__name__}")
        if self.prescale != 1.0 or self.postscale != 1.0:
            words.append(f"factors {self.prescale:g} before and {self.postscale:g} after the sum")
        if self.sparse_as_dense:
            words.append("sparse_as_dense=True")
        return f"{COMBINED}{', '.join(words)}" if words else ""


def require_cast(compression: Any, call: str) -> None:
    """Raises InvalidArgument for a value of talweg.compression, which is for averages of gradients,
    and WrongType for what is no compressor.
    """
    if isinstance(compression, Compression):
        raise InvalidArgument(
            f"{call}: compression={compression} is for optimizers that average gradients; here use "
            "Compression.none or Compression.fp16"
        )
    require_compressor(compression, call)


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
        guard: Callable[[Callable[[], Any]], Any] | None = None,
    ) -> None:
        """`before_backward` is called at a pass's first gradient: True if `.grad` is averaged. A
        method is called as long as its object lives, which may hold the optimizer. `guard`: see
        GradientAverager.
        """
        compressing = None
        if isinstance(choices.compression, Compression):
            compressing = Compressing(choices.compression)
            choices = replace(choices, compression=NoneCompressor)
            if not choices.are_usual:
                raise InvalidArgument(
                    f"compression={compressing.compression} is for averages of all ranks: leave out "
                    "the operation, factors and the process set, or the compression"
                )
        self._choices = choices
        self._before_backward = Calls()
        if before_backward is not None:
            self._before_backward.add(before_backward)
        # The sparse dimensions of each gradient that was pushed as a dense one, by its index.
        self._sparse: dict[int, int] = {}
        super().__init__(
            named_parameters,
            passes,
            name,
            waits,
            choices.members,
            compressing=compressing,
            note=choices.note,
        )
        if guard is not None:
            self.guard = guard
        averagers.add(self)

    def watch_pass(self) -> None:
        self._before_backward(self.exchange.averaged)
        super().watch_pass()

    def declare(self, tensors: Sequence[Tensor]) -> None:
        if self._choices.are_usual:  # Other choices declare each tensor with its push.
            super().declare(tensors)

    def may_be_sparse(self, index: int) -> bool:
        return not self._choices.sparse_as_dense and super().may_be_sparse(index)

    def start_rows(self, tensor: Tensor, gradient: torch.Tensor) -> Handle:
        choices = self._choices
        if choices.op not in (Op.AVERAGE, Op.SUM):
            raise InvalidArgument(
                f"the gradient of '{self.exchange.name_of(tensor.index)}' is sparse: only averages "
                "and sums of such ones are offered; use sparse_as_dense=True"
            )
        factors = Factors(choices.prescale, choices.postscale)
        of = (choices.op, tensor.name, tensor.priority, self.process_set, factors)
        if choices.compression is NoneCompressor:
            return _sparse.start_sum(self.client, gradient, *of)
        own = gradient.coalesce()
        values, context = choices.compression.compress(own.values())
        handle = _sparse.start_sum(self.client, _sparse.with_values(own, values), *of)

        def restore() -> None:
            values = choices.compression.decompress(handle.result.values(), context)
            handle.result = _sparse.with_values(handle.result, values)

        return _tensors.and_then(handle, restore)

    def dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if self._choices.sparse_as_dense:
            self._sparse[index] = gradient.sparse_dim()
        return super().dense(index, gradient)

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
        """Adds an averager, which replaces that of the same name if there is one."""
        for each in self._all:
            earlier = each()
            if earlier is not None and earlier.exchange.name == averager.exchange.name:
                earlier.end()
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
