# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse tensors for torch.distributed."""

from __future__ import annotations

import torch

from talweg._collectives import sparse_sums
from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Job
from talweg._collectives.collectives import ALL_GATHER
from talweg._collectives.sparse_rows import SparseRows
from talweg._declaration import Op
from talweg.errors import InvalidArgument, Unsupported
from talweg.torch import _cuda, _sparse
from talweg.torch._c10d_tensors import Outputs, Reduction


class Sum(Outputs):
    """A COO tensor that gets the sum of the ranks' tensors, each of which may have other indices.

    The sum is coalesced. Raises Unsupported for other operations than sum and average, and
    InvalidArgument for a tensor that is not in host memory.
    """

    def __init__(self, tensor: torch.Tensor, reduction: Reduction, size: int) -> None:
        super().__init__([], "all_reduce")
        if reduction.op not in (Op.SUM, Op.AVERAGE):
            raise Unsupported(
                f"all_reduce of sparse tensors with {reduction.op.name.lower()}: only sums and "
                "averages are supported: use tensor.to_dense()"
            )
        if tensor.device.type != "cpu":
            raise InvalidArgument(
                f"all_reduce: a sparse tensor is on {tensor.device}: use tensor.cpu()"
            )
        self._tensor = tensor
        self._divisor = 1
        own, op = _sparse.with_numbers(tensor.detach()), reduction.op
        is_whole = not (own.is_floating_point() or own.is_complex())
        if reduction.factor is not None:
            if is_whole:
                raise Unsupported(
                    "all_reduce: premul_sum takes floating point numbers only: use sum"
                )
            own = (own * reduction.factor).to(own.dtype)
        if op is Op.AVERAGE and is_whole:
            op, self._divisor = Op.SUM, size
        self._summed, self._rows = _sparse.given_of(own, op)
        self._like = own
        sparse_sums.check(self._summed, self._rows)

    def start(self, channel: CallChannel, is_async: bool) -> Job:
        """Starts the sum. It is Aborted if a rank is lost, as all calls of torch.distributed."""
        call = self._operation
        job = sparse_sums.job_of(channel, self._summed, self._rows, 0, call, ALL_GATHER)
        channel.submit(job, is_async)
        return job

    def finish(self, rows: SparseRows) -> None:
        """Writes the sum to the tensor."""
        result = _sparse.tensor_of(rows, self._like)
        if self._tensor.dtype is torch.bool:
            result = _sparse.with_values(result, result.values() != 0)
        elif self._divisor > 1:
            quotients = result.values().div(self._divisor, rounding_mode="trunc")
            result = _sparse.with_values(result, quotients)
        with _cuda.writing_to(self._tensor):
            self._tensor.copy_(result)
