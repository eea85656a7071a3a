# SPDX-License-Identifier: Apache-2.0
"""Handles: ints that stand for open operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from talweg._client import session
from talweg._client.session import Pending, Several
from talweg.horovod.common.basics import internal
from talweg.horovod.common.names import group_names


def add(start: Callable[[], Pending]) -> int:
    """Returns the handle of the operation that `start` starts."""
    return internal(lambda: session.current().add(start()))


def add_group(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    kind: str,
    start: Callable[[torch.Tensor, str | None], Pending],
) -> int:
    """Returns one handle for operations that `start` starts, each under its own name."""
    tensors = list(tensors)
    names = group_names(name, kind, len(tensors))
    return add(lambda: Several.of(start(each, own) for each, own in zip(tensors, names)))


def poll(handle: int) -> bool:
    """Whether synchronize(handle) would return without waiting.

    The first answer for a handle is False. With Horovod, too, no operation is over when its call
    returns, and some programs use this to find out whether an operation is asynchronous. Raises
    ValueError if the handle is not open.
    """
    life = internal(session.current)
    pending = life.find(handle)
    if pending is None:
        raise ValueError(f"handle {handle!r} was never given out, or is synchronized already")
    return internal(pending.poll) and not life.is_first_question(handle)


def synchronize(handle: int) -> Any:
    """Waits and returns the result, a tensor or a tuple. None if the handle was synchronized
    before.
    """
    pending = internal(lambda: session.current().take(handle))
    return None if pending is None else internal(pending.wait)
