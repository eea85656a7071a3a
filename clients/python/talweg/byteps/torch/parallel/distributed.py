# SPDX-License-Identifier: Apache-2.0
"""A module whose gradients are averages over all ranks when backward() returns."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

import talweg.torch as tw
from talweg._compat.names import names
from talweg._compat.torch import gradients
from talweg._compat.torch.compression import Compression
from talweg.byteps import _asynchrony


class DistributedDataParallel(torch.nn.Module):
    """Wraps `module`. The optimizer stays as it is in one process.

    The constructor makes parameters and buffers rank 0's. With `broadcast_buffers` every forward
    makes the buffers rank 0's again. `device_ids` is one GPU, or None for a module on the CPU. A
    process may have several wrapped modules, made in the same order at every rank.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: list[Any] | None = None,
        broadcast_buffers: bool = True,
        compression: Any = Compression.none,
    ) -> None:
        super().__init__()
        _asynchrony.refuse("DistributedDataParallel")
        if device_ids is not None and len(device_ids) != 1:
            raise AssertionError(
                f"device_ids is {device_ids}; a rank has one device: pass [local_rank], or None for "
                "the CPU"
            )
        self.module = module
        self.device_ids = device_ids
        self.broadcast_buffers = broadcast_buffers
        self.require_backward_grad_sync = True
        tw.broadcast_parameters(module.state_dict(), root_rank=0)
        named = list(module.named_parameters())
        self._averager = gradients.ChosenAverager(
            named,
            1,
            names.next("byteps.ddp", named),
            gradients.Choices(compression=compression),
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.broadcast_buffers and self.require_backward_grad_sync:
            buffers = dict(self.module.named_buffers())
            if buffers:
                tw.broadcast_parameters(buffers, root_rank=0)
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients add up locally. The next backward after it averages them
        all.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        self._averager.exchange.set_passes(sys.maxsize)
        try:
            yield
        finally:
            self.require_backward_grad_sync = before
            self._averager.exchange.set_passes(1 if before else sys.maxsize)

    def synchronize(self) -> None:
        """Returns when the gradients are averages. They are when backward() has returned."""
        self._averager.exchange.synchronize()
