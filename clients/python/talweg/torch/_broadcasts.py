# SPDX-License-Identifier: Apache-2.0
"""broadcast() of torch tensors, and calls of many tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from talweg import _client
from talweg._client import Handle, group_of
from talweg._client.left_rounds import finish_call
from talweg._collectives import rounds
from talweg._collectives.process_sets import ProcessSet
from talweg._declaration import Op
from talweg._library.native_arguments import check_name_and_priority
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


def _start_many(
    start_one: Callable[..., Handle],
    tensors: Iterable[torch.Tensor],
    name: str | None,
    *arguments: Any,
    **options: Any,
) -> Handle:
    """Starts one call for each tensor, and returns one handle for all. The calls are named name.0,
    name.1 and so on, if there is a name.
    """
    if name is not None:
        check_name_and_priority(name, 0)
    names = (None if name is None else f"{name}.{index}" for index in itertools.count())
    started = [
        start_one(tensor, *arguments, name=own, **options)
        for tensor, own in zip(tensors_of(tensors), names)
    ]
    return group_of(_client.current(), started)


def _run_many(
    start_all: Callable[..., Handle],
    tensors: Iterable[torch.Tensor],
    name: str | None,
    timeout_s: float | None,
    *arguments: Any,
    **options: Any,
) -> list[torch.Tensor]:
    """Runs the calls that `start_all` starts. Returns their results, without gradients."""
    client, every = _client.current(), tensors_of(tensors)
    left_s = rounds.before_calls(client, name, len(every), options.get("process_set"), timeout_s)
    handle = start_all(every, *arguments, name=name, **options)
    results: list[torch.Tensor] = finish_call(client, handle, left_s)
    return results


def grouped_push_pull_async(
    tensors: Iterable[torch.Tensor], name: str | None = None, op: Op | None = None, **options: Any
) -> Handle:
    """Starts push_pull_async() of many tensors, with its options. Returns one handle for all.

    With a name the tensors have the names name.0, name.1 and so on.
    """
    return _start_many(push_pull_async, tensors, name, op=op, **options)


def grouped_push_pull(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: Op | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Does push_pull() of many tensors. Returns the list of results, without gradients."""
    return _run_many(grouped_push_pull_async, tensors, name, timeout_s, op=op, **options)


def grouped_push_pull_async_inplace(
    tensors: Iterable[torch.Tensor], name: str | None = None, op: Op | None = None, **options: Any
) -> Handle:
    """Does the same as grouped_push_pull_async(), in place."""
    return _start_many(push_pull_async_inplace, tensors, name, op=op, **options)


def grouped_push_pull_inplace(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: Op | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Does the same as grouped_push_pull(), in place. Returns the list of tensors."""
    return _run_many(grouped_push_pull_async_inplace, tensors, name, timeout_s, op=op, **options)


def grouped_broadcast_async(
    tensors: Iterable[torch.Tensor], root_rank: int = 0, name: str | None = None, **options: Any
) -> Handle:
    """Starts broadcast_async() of many tensors, with its options. Returns one handle for all."""
    return _start_many(broadcast_async, tensors, name, root_rank, **options)


def grouped_broadcast(
    tensors: Iterable[torch.Tensor],
    root_rank: int = 0,
    name: str | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Does broadcast() of many tensors. Returns the list of copies."""
    return _run_many(grouped_broadcast_async, tensors, name, timeout_s, root_rank, **options)


def grouped_broadcast_async_(
    tensors: Iterable[torch.Tensor], root_rank: int = 0, name: str | None = None, **options: Any
) -> Handle:
    """Starts broadcast_async_() of many tensors, with its options. Returns one handle for all."""
    return _start_many(broadcast_async_, tensors, name, root_rank, **options)


def grouped_broadcast_(
    tensors: Iterable[torch.Tensor],
    root_rank: int = 0,
    name: str | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Does broadcast_() of many tensors, in place. Returns the list of tensors."""
    return _run_many(grouped_broadcast_async_, tensors, name, timeout_s, root_rank, **options)
