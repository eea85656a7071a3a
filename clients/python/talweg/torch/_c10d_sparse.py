# SPDX-License-Identifier: Apache-2.0
"""Sums sparse tensors for torch.distributed: all ranks gather the indices and the values."""

from __future__ import annotations

import math
from typing import Any

import torch

from talweg._collectives.collectives import ALL_GATHER, Given, Rows
from talweg._declaration import Op
from talweg.errors import InvalidArgument, Mismatch, Unsupported
from talweg.torch import _c10d_tensors as tensors_
from talweg.torch import _cuda, _sparse
from talweg.torch._c10d_tensors import Outputs, Reduction


class _Gathered(Outputs):
    """The rows of all ranks, in a tensor that is made when their number is known."""

    def __init__(self, like: torch.Tensor) -> None:
        super().__init__([], "all_reduce")
        self._like = like
        self.all_rows = like

    def allocate(self, rows: Rows, counts: list[int]) -> tuple[Any, int]:
        result = self._like.new_empty((sum(counts), *self._like.shape[1:]))
        return result, int(result.data_ptr())

    def finish(self, got: Any) -> None:
        self.all_rows = got


class _Sum(_Gathered):
    """Gets the ranks' values, after their shapes and indices, and writes the sum to the tensor."""

    def __init__(
        self, tensor: torch.Tensor, values: torch.Tensor, shapes: _Gathered, indices: _Gathered
    ) -> None:
        super().__init__(values)
        self._tensor = tensor
        self._shapes = shapes
        self._indices = indices

    def finish(self, got: Any) -> None:
        shapes = self._shapes.all_rows.tolist()
        for rank, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise Mismatch(
                    f"all_reduce of sparse tensors: rank 0 of the group has the shape {shapes[0]}, "
                    f"but rank {rank} has {shape}"
                )
        with _cuda.writing_to(self._tensor):
            self._tensor.copy_(
                _sparse.of_rows(self._indices.all_rows, got, self._tensor.shape).coalesce()
            )


def all_reduce(
    tensor: torch.Tensor, reduction: Reduction, size: int
) -> tuple[list[Outputs], list[Given]]:
    """Returns the outputs of the calls that sum the COO tensors of `size` ranks, and these calls.

    Each rank may have other indices, and any number of them. The sum is coalesced. Raises
    Unsupported for other operations than sum and average, and InvalidArgument for a tensor that is
    not in host memory.
    """
    if reduction.op not in (Op.SUM, Op.AVERAGE):
        raise Unsupported(
            f"all_reduce of sparse tensors with {reduction.op.name.lower()}: only sums and averages "
            "are supported: use tensor.to_dense()"
        )
    if tensor.device.type != "cpu":
        raise InvalidArgument(
            f"all_reduce: a sparse tensor is on {tensor.device}: use tensor.cpu()"
        )
    indices, values = _sparse.rows_of(tensor.detach())
    if reduction.factor is not None:
        values = values * reduction.factor
    if reduction.op is Op.AVERAGE:
        values = values / size
    shape = torch.tensor([[*tensor.shape, tensor.sparse_dim()]], device="cpu")
    outputs: list[_Gathered] = [_Gathered(shape), _Gathered(indices)]
    outputs.append(_Sum(tensor, values, outputs[0], outputs[1]))
    calls = [_gather(each, output) for each, output in zip((shape, indices, values), outputs)]
    return [*outputs], calls


def _gather(rows_of_rank: torch.Tensor, output: Outputs) -> Given:
    """Returns a gather of tensors whose first dimension may differ between ranks."""
    row_shape = tuple(rows_of_rank.shape[1:])
    row_bytes = math.prod(row_shape) * rows_of_rank.element_size()
    rows = Rows(tensors_.elements(rows_of_rank).dtype, row_shape, row_bytes)
    return tensors_.given(ALL_GATHER, [rows_of_rank], rows, [rows_of_rank.shape[0]], 0, output)
