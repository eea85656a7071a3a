# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer by BytePS's signature."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

import torch

from talweg._compat.names import names
from talweg._compat.torch import gradients
from talweg._compat.torch.compression import Compression
from talweg.byteps import _asynchrony
from talweg.torch._asynchronous import AsynchronousOptimizer
from talweg.torch._optimizer import distribute, name_parameters

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def make_averager(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Any] | None,
    compression: Any,
    backward_passes_per_step: int,
    kind: str,
    waits: bool,
) -> gradients.ChosenAverager:
    named = name_parameters(optimizer, gradients.check_names(optimizer, named_parameters))
    return gradients.ChosenAverager(
        named,
        backward_passes_per_step,
        names.next(kind, named),
        gradients.Choices(compression=compression),
        waits,
    )


def _make_asynchronous(
    optimizer: OptimizerT, named_parameters: Iterable[Any] | None, compression: Any
) -> OptimizerT:
    _asynchrony.refuse_compression(compression, Compression.none)
    pairs = gradients.check_names(optimizer, named_parameters)
    named = name_parameters(optimizer, pairs)
    return AsynchronousOptimizer(optimizer, named, ahead=0, name=_asynchrony.next_name())


def DistributedOptimizer(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
) -> OptimizerT:
    """Makes `optimizer` average its gradients over all ranks; returns the same object.

    The optimizer gets synchronize(), skip_synchronize() and set_backward_passes_per_step(n). When
    backward() returns, the averages stand in `.grad`. `compression` is one of Compression, or a value
    of talweg.compression. See talweg.torch.DistributedOptimizer().

    With BYTEPS_ENABLE_ASYNC=1 gradients stay as they are, and the ranks' steps are added up without
    any rank waiting for another. See talweg.torch.AsynchronousOptimizer().
    """
    if _asynchrony.is_asked_for():
        return _make_asynchronous(optimizer, named_parameters, compression)
    make = partial(
        make_averager, optimizer, named_parameters, compression, backward_passes_per_step, "byteps"
    )
    return distribute(optimizer, make)
