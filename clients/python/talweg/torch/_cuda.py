# SPDX-License-Identifier: Apache-2.0
"""Hands torch's tensors on NVIDIA's GPUs to the agent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from talweg._client import Client, Handle
from talweg._declaration import Declaration
from talweg._gpu import gpu
from talweg._gpu.place import Place


def gpus_of(client: Client, tensor: torch.Tensor) -> gpu.Gpus | None:
    """Returns what hands the tensor to the agent where it lies; None if it is not on an NVIDIA GPU.

    torch copies tensors on other accelerators to host memory and back.
    """
    if not tensor.is_cuda or torch.version.hip is not None:
        return None
    return gpu.gpus_of(client)


def place_of(tensor: torch.Tensor) -> Place:
    device = tensor.device
    return Place(
        gpu=device.index,
        address=tensor.data_ptr(),
        nbytes=tensor.numel() * tensor.element_size(),
        stream=lambda: int(torch.cuda.current_stream(device).cuda_stream),
    )


def declare_all(
    client: Client,
    parameters: Sequence[torch.Tensor],
    declarations: Sequence[tuple[str, Declaration, int]],
    in_place: bool = False,
) -> None:
    """Declares the parameters' gradients, which are all on one device.

    `in_place` lets ranks sum gradients in host memory in place. Where ranks disagree on a gradient
    in host memory, its next push says so.
    """
    gpus = gpus_of(client, parameters[0])
    gradients = [each.grad for each in parameters if each.grad is not None]
    there = [each for each in gradients if each.layout == torch.strided and each.numel() > 0]
    if gpus is None:
        client.tensors.settle(declarations, in_place, for_good=True)
    # Without a gradient nothing tells whether the agent takes them, so each push declares its own.
    elif there:
        gpus.declare_all(declarations, place_of(there[0]))


def start(
    gpus: gpu.Gpus,
    tensor: torch.Tensor,
    out: torch.Tensor,
    name: str,
    declaration: Declaration,
    priority: int,
) -> Handle:
    """Starts a round of `tensor` whose result goes to `out`.

    The result takes the contribution's place in memory. So the contribution lies in `out` if `out`
    is contiguous.
    """
    contribution = out.detach()
    if not is_plain(out):
        contribution = tensor.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
    elif out is not tensor:
        copy(contribution, tensor)
    return gpus.push(
        name,
        declaration,
        place_of(contribution),
        priority,
        result=out,
        keep=(contribution, out),
        finish=None if is_plain(out) else lambda: copy(out, contribution),
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements lie one after another, and none is to be negated."""
    return tensor.is_contiguous() and not tensor.is_neg()


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies on the current stream. Autograd does not see it."""
    with torch.no_grad(), writing_to(target):
        target.copy_(source.view(target.shape))


def writing_to(*tensors: torch.Tensor) -> AbstractContextManager[Any]:
    """Returns a context in which any thread may change the tensors. torch lets a thread change
    those that inference mode has made only while the thread is in that mode.
    """
    if any(tensor.is_inference() for tensor in tensors):
        return torch.inference_mode()
    return nullcontext()
