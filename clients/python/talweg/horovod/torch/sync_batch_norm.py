# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over all ranks' batches."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

import talweg.torch as tw
from talweg._compat.names import names
from talweg.errors import InvalidArgument
from talweg.horovod.common import basics
from talweg.horovod.common.process_sets import global_process_set

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm with the mean and the variance of all ranks' inputs, on CPUs and GPUs.

    Ranks may have batches of different lengths. Every rank must make these layers in the same
    order. With one rank, or in eval mode with tracked statistics, it works as the plain layer.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._name = names.next("horovod.sync_batch_norm")

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgument(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> Any:
        self._check_input_dim(input)
        uses_tracked = not self.training and self.track_running_stats
        # A program that has called byteps.torch.init() may use the layer as well.
        if uses_tracked or global_process_set.size() == 1:
            return super().forward(input)
        return basics.internal(lambda: self._synchronized(input))

    def _synchronized(self, input: torch.Tensor) -> torch.Tensor:
        others = [dim for dim in range(input.dim()) if dim != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = torch.tensor([wide.numel() // wide.shape[1]], dtype=wide.dtype, device=wide.device)
        # Autograd goes through both rounds, and so reaches all ranks' inputs.
        sums = torch.cat([wide.sum(others), count])
        total = tw.push_pull(sums, name=f"{self._name}.mean", op=tw.Op.SUM)
        whole = total[-1]
        mean = total[:-1] / whole
        centered = wide - mean.view(shape)
        squares = tw.push_pull(
            centered.square().sum(others), name=f"{self._name}.variance", op=tw.Op.SUM
        )
        variance = squares / whole
        self._track(mean.detach(), (squares / (whole - 1)).detach())
        result = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None:
            return
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
            self.running_var.lerp_(variance.to(self.running_var.dtype), factor)
