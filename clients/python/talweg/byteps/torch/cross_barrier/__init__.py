# SPDX-License-Identifier: Apache-2.0
"""byteps.torch.cross_barrier: the names of byteps.torch, and CrossBarrier."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

import talweg.byteps.torch as bps
from talweg.byteps import _asynchrony
from talweg.byteps.torch import *  # noqa: F403
from talweg.byteps.torch._optimizer import make_averager
from talweg.torch._optimizer import distribute

__all__ = ["CrossBarrier"]
__all__ += bps.__all__
__getattr__ = bps.__getattr__


def CrossBarrier(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = bps.Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Any:
    """Returns an optimizer whose steps the next forward pass of `model` makes, layer by layer.

    Neither backward() nor step() waits for the averages. Step number `num_steps` waits for all of
    them. The update of a parameter must depend on that parameter alone, as in SGD, Adam, RMSprop
    and similar optimizers. See `overlap_forward` of talweg.torch.DistributedOptimizer().
    """
    _asynchrony.refuse("CrossBarrier")
    pairs = list(model.named_parameters() if named_parameters is None else named_parameters)
    make = partial(
        make_averager, optimizer, pairs, compression, backward_passes_per_step, "byteps.cross"
    )
    distributed: Any = distribute(optimizer, make, model)
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == num_steps:
            distributed.synchronize_parameters()

    distributed.register_step_post_hook(count)
    return distributed
