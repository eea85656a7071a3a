# SPDX-License-Identifier: Apache-2.0
"""What ranks that make steps of their own compare, and make equal, when they agree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from talweg._collectives import objects
from talweg._digest import Digest
from talweg._exchange.differences import first_that_differ
from talweg.errors import Mismatch
from talweg.torch._checks import TAKEN_OUT_BY, has_memory
from talweg.torch._local_rounds import Rounds
from talweg.torch._local_rule import Rule


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements are in this process, one beside the other."""
    if any(hasattr(tensor, way) for way in TAKEN_OUT_BY):
        return False
    return tensor.layout is torch.strided and has_memory(tensor) and tensor.numel() > 0


def buffers_of_all_kinds(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Returns the buffers of the model's state_dict()."""
    kept = model.state_dict(keep_vars=True)
    return [(name, each) for name, each in model.named_buffers() if name in kept and is_dense(each)]


def describe(name: str, tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).replace("torch.", "")
    return f"'{name}' ({dtype}{list(tensor.shape)})"


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's bytes in host memory, which are a copy if they do not lie there so."""
    host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return host.reshape(-1).view(torch.uint8)


def digest_of(tensors: Iterable[torch.Tensor], text: str = "") -> int:
    total = Digest()
    total.update(text.encode())
    for each in tensors:
        total.update(bytes_of(each).numpy().data)
    return total.value


@torch.no_grad()
def broadcast(rounds: Rounds, tensors: Iterable[torch.Tensor], name: str, root: int) -> None:
    """Makes the tensors those of the root, byte for byte."""
    tensors = list(tensors)
    length = sum(each.numel() * each.element_size() for each in tensors)
    full = f"{rounds.name}.{name}.{root}"
    stream = objects.ByteStream(rounds.client, root, full, length, rounds.process_set)
    for each in tensors:
        data = bytes_of(each)
        stream.carry(data.numpy())
        if not stream.is_root:
            each.copy_(data.view(each.dtype).view(each.shape))


def require_same_arguments(rounds: Rounds, told: list[tuple[int, dict[str, Any]]]) -> None:
    if all(each == told[0][1] for _, each in told):
        return
    (one, _), (other, theirs) = first_that_differ(told)
    differs = Rule(**told[0][1]).difference(theirs)
    assert differs is not None
    raise Mismatch(
        f"{rounds.title}: rank {one} has {differs[0]}, and rank {other} has {differs[1]}: "
        "give all ranks the same arguments"
    )
