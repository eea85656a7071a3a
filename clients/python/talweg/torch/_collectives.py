# SPDX-License-Identifier: Apache-2.0
"""Collectives of torch tensors, without gradients. Tensors on a GPU go through host memory."""

from __future__ import annotations

from typing import Any

import torch

from talweg._collectives.grouped_calls import GroupedCalls
from talweg._declaration import DType, Op
from talweg.errors import InvalidArgument
from talweg.torch import _cuda
from talweg.torch._checks import require_dense, require_elements, require_places, require_tensor
from talweg.torch._tensors import DTYPES, as_pushed, mark_changed, wire_dtype


def _name(dtype: torch.dtype) -> str:
    known = DTYPES.get(dtype)
    return known.name.lower() if known is not None else str(dtype).removeprefix("torch.")


_BY_NAME = {wire.name.lower(): dtype for dtype, wire in DTYPES.items()}


class TorchTensors:
    """The tensor operations of torch that Collectives needs."""

    def source(self, tensor: Any, copied: bool) -> Any:
        require_elements(tensor)
        given = tensor.detach()
        source = given.to("cpu").resolve_conj().resolve_neg().contiguous()
        return source.clone() if copied and source.data_ptr() == tensor.data_ptr() else source

    def address(self, source: Any) -> int:
        return int(source.data_ptr())

    def shape(self, tensor: Any) -> tuple[int, ...]:
        require_tensor(tensor)
        require_dense(tensor)
        if tensor.is_quantized:
            raise InvalidArgument(
                "a quantized tensor has a scale of its own: pass tensor.dequantize(), or "
                "tensor.int_repr()"
            )
        return tuple(tensor.shape)

    def dtype(self, tensor: Any) -> str:
        return _name(tensor.dtype)

    def dtype_named(self, dtype: Any) -> str:
        if isinstance(dtype, DType) and dtype.name.lower() in _BY_NAME:
            return dtype.name.lower()
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype, dtype)
        if not isinstance(dtype, torch.dtype):
            raise InvalidArgument(
                f"{dtype!r} is not a dtype of torch: pass torch.float32 or the like"
            )
        return _name(dtype)

    def wire_dtype(self, tensor: Any) -> DType:
        return wire_dtype(tensor)

    def item_bytes(self, tensor: Any) -> int:
        return int(tensor.element_size())

    def empty(self, dtype: str, shape: tuple[int, ...]) -> Any:
        known = _BY_NAME.get(dtype) or getattr(torch, dtype, None)
        if not isinstance(known, torch.dtype):
            raise InvalidArgument(f"torch has no dtype {dtype}, which another rank gives")
        return torch.empty(shape, dtype=known, device="cpu")

    def reducible(self, tensor: Any, op: Op) -> Any:
        return as_pushed(tensor.resolve_conj() if tensor.is_complex() else tensor, op)

    def as_given(self, result: Any, like: Any) -> Any:
        if result is None or result.is_complex() == like.is_complex():
            return result
        return torch.view_as_complex(result)

    def given_back(self, result: Any, like: Any) -> Any:
        if result is None or like is None or like.device.type == "cpu":
            return result
        return result.to(like.device)

    def require_target(self, tensor: Any) -> None:
        require_tensor(tensor)
        require_elements(tensor)
        require_places(tensor)

    def target(self, tensor: Any) -> Any:
        if tensor.device.type == "cpu" and _cuda.is_plain(tensor):
            return tensor.detach()
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")

    def written(self, tensor: Any, target: Any) -> None:
        if target.data_ptr() != tensor.data_ptr():
            _cuda.copy(tensor, target)
        else:
            mark_changed(tensor)


COLLECTIVES = GroupedCalls(TorchTensors())
