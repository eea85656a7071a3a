# SPDX-License-Identifier: Apache-2.0
"""Rounds of torch tensors by the other systems' rules: scaling, and integer averages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import talweg.torch as tw
from talweg import _client
from talweg._client import Handle
from talweg._client.session import Failed, Pending
from talweg._collectives.process_sets import Group
from talweg._collectives.scaling import average_integers
from talweg._declaration import Op
from talweg.errors import Busy, InvalidArgument, Mismatch
from talweg.torch import _tensors

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Round:
    """A round of Talweg, and what is done with its result."""

    def __init__(
        self,
        handle: Handle,
        finish: Any = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        """`at_end` is called after wait() has a result or an error."""
        self._handle = handle
        self._finish = finish
        self._at_end = at_end

    def poll(self) -> bool:
        return bool(tw.poll(self._handle))

    def wait(self) -> Any:
        try:
            result = tw.synchronize(self._handle)
        finally:
            if self._at_end is not None:
                self._at_end()
        return result if self._finish is None else self._finish(result)


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Returns a new, scaled tensor. Integers are scaled in double precision and truncated."""
    if tensor.dtype in _INTEGERS:
        return (tensor.to(torch.float64) * factor).trunc().to(tensor.dtype)
    return tensor * factor


def average_whole(
    sums: torch.Tensor, ranks: int, postscale: float = 1.0, rounds_down: bool = False
) -> torch.Tensor:
    """Makes sums of integers averages, in place, by average_integers(). Returns them."""
    on_host = sums.cpu()
    average_integers(on_host.numpy(), ranks, postscale, rounds_down)
    return sums if on_host is sums else sums.copy_(on_host)


def push_pull(
    tensor: torch.Tensor,
    op: Op,
    name: str | None,
    priority: int = 0,
    in_place: bool = False,
    members: Any = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    rounds_down: bool = False,
) -> Pending:
    """Starts a round of `tensor`. The result is a new tensor, or `tensor` itself if `in_place`.

    Raises at the call if the round cannot be carried out. If ranks disagree, wait() raises
    Mismatch. Averages of integers are rounded towards zero, or with `rounds_down` down.
    """
    client = _client.current()
    is_average_of_integers = op is Op.AVERAGE and tensor.dtype in _INTEGERS
    wire_op = Op.SUM if is_average_of_integers else op
    own = tensor.detach()
    source = scaled(own, prescale) if prescale != 1.0 else own
    is_plain = not is_average_of_integers and postscale == 1.0
    out = tensor if in_place and source is own and is_plain else torch.empty_like(own)
    size = client.size if members is None else members.size()

    def finish(result: torch.Tensor) -> torch.Tensor:
        if is_average_of_integers:
            # Where a rank is lost, fewer ranks than the group has may be in the sum.
            average_whole(result, handle.ranks_summed or size, postscale, rounds_down)
        elif postscale != 1.0:
            result = scaled(result, postscale)
        if in_place and result is not tensor:
            with torch.no_grad():
                tensor.copy_(result)
            return tensor
        return result

    try:
        handle = _start(client, source, out, wire_op, name, priority, members)
    except Mismatch as failure:
        return Failed(failure)
    except Busy as failure:
        raise InvalidArgument(str(failure)) from None
    is_done = is_plain and out is tensor
    return Round(handle, None if is_done else finish)


def _start(
    client: Any,
    source: torch.Tensor,
    out: torch.Tensor,
    op: Op,
    name: str | None,
    priority: int,
    members: Any,
    root_rank: int = 0,
) -> Handle:
    handle = _tensors.start(client, source, out, op, name, priority, root_rank, members)
    # For a new tensor this has no effect: autograd has saved nothing of it.
    return _tensors.for_autograd(handle, out)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, in_place: bool, members: Any = None
) -> Pending:
    """Starts a broadcast, by push_pull()'s rules. The result is the root's tensor."""
    client = _client.current()
    Group(client, members, "broadcast").require_root(root_rank, "broadcast")
    out = tensor if in_place else torch.empty_like(tensor, requires_grad=False)
    try:
        handle = _start(client, tensor.detach(), out, Op.BROADCAST, name, 0, members, root_rank)
    except Mismatch as failure:
        return Failed(failure)
    except Busy as failure:
        raise InvalidArgument(str(failure)) from None
    return Round(handle)
