# SPDX-License-Identifier: Apache-2.0
"""byteps.misc.imagenet18: the names of byteps.torch, with an optimizer of half-precision models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import torch


from talweg._compat.names import names
from talweg._compat.torch import gradients
from talweg.byteps import _asynchrony
from talweg.byteps import torch as bps
from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.byteps.torch import (
    Compression,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    ops,
    parallel,
)
from talweg.byteps.torch.ops import *  # noqa: F403
from talweg.errors import InvalidArgument

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "parallel",
]
__all__ += ops.__all__
__all__ += surface.__all__
__getattr__ = bps.__getattr__


class _HalfPrecision:
    """An optimizer for a model in f16.

    It averages the f16 gradients, converts them to f32 and divides them by the loss scale. It
    applies them to f32 copies of the parameters, and copies these back. All other attributes are
    those of the wrapped optimizer, which holds the f32 parameters.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[Any] | None,
        compression: Any,
        backward_passes_per_step: int,
        model: torch.nn.Module,
        fp16_params: Iterable[torch.nn.Parameter],
        fp32_params: Iterable[torch.nn.Parameter],
        loss_scale: float,
    ) -> None:
        _asynchrony.refuse("a model in f16")
        self._optimizer = optimizer
        self._pairs = list(zip(fp16_params, fp32_params))
        self._loss_scale = loss_scale
        named = list(model.named_parameters() if named_parameters is None else named_parameters)
        gradients.check_names(optimizer, named)
        self._averager = gradients.ChosenAverager(
            named,
            backward_passes_per_step,
            names.next("byteps.half", named),
            gradients.Choices(compression=compression),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes accumulate before the gradients are averaged."""
        self._averager.exchange.set_passes(passes)

    def synchronize(self) -> None:
        """Returns when the f16 gradients are averages."""
        self._averager.exchange.synchronize()

    def step(self, closure: Callable[[], Any] | None = None, wait_for_finish: bool = True) -> Any:
        """Makes the step. It is over when this returns, whatever `wait_for_finish` is."""
        loss = closure() if closure is not None else None
        self.synchronize()
        for half, full in self._pairs:
            if half.grad is not None:
                full.grad = half.grad.detach().float() / self._loss_scale
        self._optimizer.step()
        with torch.no_grad():
            for half, full in self._pairs:
                half.copy_(full)
        self._averager.exchange.on_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)
        for half, _ in self._pairs:
            if set_to_none:
                half.grad = None
            elif half.grad is not None:
                half.grad = torch.zeros_like(half.grad)
        self._averager.exchange.on_zero_grad()


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    half: bool = False,
    model: torch.nn.Module | None = None,
    fp16_params: Iterable[torch.nn.Parameter] | None = None,
    fp32_params: Iterable[torch.nn.Parameter] | None = None,
    loss_scale: float = 1024,
) -> Any:
    """Does the same as byteps.torch.DistributedOptimizer(). With `half` the model is in f16.

    With `half` the program multiplies the loss by `loss_scale` before backward(). `fp16_params` are
    the model's parameters. The optimizer holds `fp32_params`, their copies in the same order.
    """
    if not half:
        return bps.DistributedOptimizer(
            optimizer, named_parameters, compression, backward_passes_per_step
        )
    if model is None or fp16_params is None or fp32_params is None:
        raise InvalidArgument("half=True needs model, fp16_params and fp32_params")
    return _HalfPrecision(
        optimizer,
        named_parameters,
        compression,
        backward_passes_per_step,
        model,
        fp16_params,
        fp32_params,
        loss_scale,
    )
