# SPDX-License-Identifier: Apache-2.0
"""broadcast() of torch tensors, and calls of many tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from talweg import _client
from talweg._client import Handle
from talweg._client.left_rounds import finish_call
from talweg._collectives import rounds
from talweg._collectives.many_rounds import run_many, start_many
from talweg._collectives.process_sets import ProcessSet
from talweg._declaration import Op
from talweg.torch._checks import (
    require_elements,
    require_in_place,
    require_tensor,
    tensors_of,
)
from talweg.torch._tensors import (
    for_autograd,
    push_pull_async,
    push_pull_async_inplace,
    start,
)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Makes every rank's `tensor` the root's, byte for byte, in place, and returns it.

    The tensor may have any dtype.
    """
    client = _client.current()
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    handle = broadcast_async_(tensor, root_rank, name, process_set, priority=priority)
    result: torch.Tensor = finish_call(client, handle, left_s)
    return result


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
) -> Handle:
    """Starts broadcast_(). Do not read or write the tensor until synchronize()."""
    client = _client.current()
    require_in_place(tensor)
    of = (Op.BROADCAST, name, priority, root_rank, process_set)
    return for_autograd(start(client, tensor, tensor, *of, queues=True), tensor)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Returns a copy of the root's tensor at every rank, byte for byte, without a gradient."""
    client = _client.current()
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    handle = broadcast_async(tensor, root_rank, name, process_set, priority=priority)
    result: torch.Tensor = finish_call(client, handle, left_s)
    return result


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
) -> Handle:
    """Starts broadcast() and returns its handle; the tensor may be changed at once."""
    require_tensor(tensor)
    require_elements(tensor)
    out = torch.empty_like(tensor, requires_grad=False)
    of = (Op.BROADCAST, name, priority, root_rank, process_set)
    return start(_client.current(), tensor, out, *of, queues=True)


# ----- Many tensors -----


def grouped_push_pull_async(
    tensors: Iterable[torch.Tensor], name: str | None = None, op: Op | None = None, **options: Any
) -> Handle:
    """Starts push_pull_async() of many tensors, with its options. Returns one handle for all.

    With a name the tensors have the names name.0, name.1 and so on.
    """
    return start_many(push_pull_async, tensors_of(tensors), name, op=op, **options)


def grouped_push_pull(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: Op | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Does push_pull() of many tensors. Returns the list of results, without gradients."""
    return run_many(grouped_push_pull_async, tensors_of(tensors), name, timeout_s, op=op, **options)


def grouped_push_pull_async_inplace(
    tensors: Iterable[torch.Tensor], name: str | None = None, op: Op | None = None, **options: Any
) -> Handle:
    """Does the same as grouped_push_pull_async(), in place."""
    return start_many(push_pull_async_inplace, tensors_of(tensors), name, op=op, **options)


def grouped_push_pull_inplace(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: Op | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Does the same as grouped_push_pull(), in place. Returns the list of tensors."""
    return run_many(
        grouped_push_pull_async_inplace, tensors_of(tensors), name, timeout_s, op=op, **options
    )


def grouped_broadcast_async(
    tensors: Iterable[torch.Tensor], root_rank: int = 0, name: str | None = None, **options: Any
) -> Handle:
    """Starts broadcast_async() of many tensors, with its options. Returns one handle for all."""
    return start_many(broadcast_async, tensors_of(tensors), name, root_rank, **options)


def grouped_broadcast(
    tensors: Iterable[torch.Tensor],
    root_rank: int = 0,
    name: str | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Does broadcast() of many tensors. Returns the list of copies."""
    return run_many(
        grouped_broadcast_async, tensors_of(tensors), name, timeout_s, root_rank, **options
    )


def grouped_broadcast_async_(
    tensors: Iterable[torch.Tensor], root_rank: int = 0, name: str | None = None, **options: Any
) -> Handle:
    """Starts broadcast_async_() of many tensors, with its options. Returns one handle for all."""
    return start_many(broadcast_async_, tensors_of(tensors), name, root_rank, **options)


def grouped_broadcast_(
    tensors: Iterable[torch.Tensor],
    root_rank: int = 0,
    name: str | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Does broadcast_() of many tensors, in place. Returns the list of tensors."""
    return run_many(
        grouped_broadcast_async_, tensors_of(tensors), name, timeout_s, root_rank, **options
    )
