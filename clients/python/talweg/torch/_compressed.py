# SPDX-License-Identifier: Apache-2.0
"""Averages of gradients that are compressed before they leave."""

from __future__ import annotations

from typing import Any

import torch

from talweg._client import Client, Handle
from talweg._declaration import Declaration
from talweg._elastic.membership import membership_of
from talweg._exchange.adapter import Tensor
from talweg._exchange.compressing import Compressing, Stand
from talweg.compression import Compression
from talweg.errors import InvalidArgument
from talweg.torch import _cuda
from talweg.torch._tensors import DTYPES


def compressing_of(compression: Any) -> Compressing | None:
    """Returns what compresses by a caller's `compression`; None for None."""
    if compression is None:
        return None
    if not isinstance(compression, Compression):
        raise InvalidArgument(
            f"compression is {compression!r}; it must be a value of talweg.compression, such as "
            "TopK(0.01), or None"
        )
    return Compressing(compression)


def takes(compressing: Compressing | None, parameter: torch.Tensor) -> bool:
    """Whether the parameter's gradients are compressed. Every rank gets the same answer."""
    nbytes = parameter.numel() * parameter.element_size()
    return compressing is not None and compressing.takes(DTYPES.get(parameter.dtype), nbytes)


def note_of(compressing: Compressing | None, parameter: torch.Tensor) -> str:
    """Returns what ranks compare of the parameter beside its name and shape."""
    if compressing is None or not takes(compressing, parameter):
        return ""
    return compressing.note


def start_compressed(
    client: Client,
    compressing: Compressing,
    tensor: Tensor,
    gradient: torch.Tensor,
    declaration: Declaration,
    has_gradient: bool,
) -> Handle:
    """Starts the average of the ranks' compressed gradients. finish() returns it; it stands in the
    gradient's memory where that has a place for each element.

    Without a gradient (`gradient` is zeros) this rank gives zeros, and what it remembers stays.
    """
    client.check_push(declaration)
    declared = client.tensors.declare(tensor.name, declaration, tensor.priority)
    # A gradient on a GPU is compressed in host memory.
    whole = gradient.detach().to("cpu").resolve_neg().contiguous()
    stand = Stand(client.rank, membership_of(client).view.epoch)
    address, count = whole.data_ptr(), whole.numel()
    if has_gradient:
        compressing.compress(tensor.name, address, count, stand)
    else:
        compressing.skip(tensor.name, count, stand)
    is_own_memory = address == gradient.data_ptr()
    has_places = 0 not in gradient.stride()

    def put_back() -> None:
        if not is_own_memory and has_places:
            _cuda.copy(gradient, whole)

    result = gradient if has_places else whole
    return client.push_declared(
        declared, address, address, tensor.priority, result, whole, finish=put_back
    )
