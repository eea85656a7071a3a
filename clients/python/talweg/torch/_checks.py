# SPDX-License-Identifier: Apache-2.0
"""Refuses tensors that no call can take."""

from __future__ import annotations

from typing import Any

import torch

from talweg._arguments import listed
from talweg.errors import InvalidArgument, WrongType
from talweg.torch import _cuda

# The methods by which a tensor gives what lies elsewhere.
TAKEN_OUT_BY = ("to_local", "wait")


def require_tensor(tensor: Any) -> None:
    """Raises WrongType unless `tensor` is a torch.Tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise WrongType(
            f"expected a torch.Tensor, got {type(tensor).__name__}: use torch.as_tensor()"
        )


def require_dense(tensor: torch.Tensor) -> None:
    """Raises InvalidArgument for a sparse or nested tensor."""
    if tensor.layout != torch.strided:
        raise InvalidArgument(
            f"a tensor of layout {tensor.layout} cannot be pushed: use tensor.to_dense(), or "
            "push_pull_sparse()"
        )
    if tensor.is_nested:
        raise InvalidArgument("a nested tensor cannot be pushed: push each of its tensors")


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements lie at its own address. A wrapper's elements lie elsewhere."""
    if not (tensor.is_cpu or tensor.is_cuda):
        return not tensor.is_meta
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:  # torch.func, or a batched gradient, has wrapped the tensor.
        return False


def is_in_ram(tensor: torch.Tensor) -> bool:
    """Whether the tensor is dense and has elements in host memory at its own address. Quick."""
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.data_ptr() != 0


def require_memory(tensor: torch.Tensor) -> None:
    """Raises InvalidArgument for a tensor without memory of its own."""
    if has_memory(tensor):
        return
    kind = type(tensor).__name__
    for method in TAKEN_OUT_BY:
        if hasattr(tensor, method):
            raise InvalidArgument(
                f"the elements of this {kind} lie elsewhere: pass tensor.{method}()"
            )
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        try:
            tensor.data_ptr()
        except RuntimeError:
            raise InvalidArgument(
                f"this {kind} of shape {list(tensor.shape)} has no memory, as under a transform of "
                "torch.func (grad, jvp, vmap) or in a batched gradient (is_grads_batched=True): there "
                "only push_pull() can be called, outside of vmap. Make this call outside, or pass "
                "tensor.detach() if it is a constant there and has elements"
            ) from None
    raise InvalidArgument(
        f"this {kind} of shape {list(tensor.shape)} has no memory: pass one that has elements"
    )


def require_elements(tensor: torch.Tensor) -> None:
    """Raises InvalidArgument for a tensor that is not dense or has no memory of its own."""
    require_dense(tensor)
    if tensor.is_meta:
        raise InvalidArgument(
            "a tensor of the device meta cannot be pushed: give it elements first"
        )
    require_memory(tensor)


def require_places(tensor: torch.Tensor) -> None:
    """Raises InvalidArgument if several elements of the tensor share one place in memory."""
    steps = zip(tensor.stride(), tensor.shape)
    if tensor.numel() > 0 and any(step == 0 and many > 1 for step, many in steps):
        raise InvalidArgument(
            "several elements of this tensor share one place in memory, as after expand(), so no "
            "result can be written to it: pass tensor.clone()"
        )


def require_in_place(tensor: Any) -> None:
    """Raises InvalidArgument if a call cannot write its result into `tensor`."""
    require_tensor(tensor)
    require_elements(tensor)
    if not _cuda.is_plain(tensor):
        require_places(tensor)


def tensors_of(tensors: Any) -> list[torch.Tensor]:
    """Returns the tensors of a grouped call; raises InvalidArgument if one is not a tensor."""
    every = listed(tensors, "grouped_push_pull")
    for tensor in every:
        require_tensor(tensor)
    return every
