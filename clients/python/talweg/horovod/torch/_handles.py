# SPDX-License-Identifier: Apache-2.0
"""The ints that stand for operations under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from talweg._client import session
from talweg._client.session import Pending, Several
from talweg.horovod.common.basics import internal
from talweg.horovod.common.names import group_names


def add(start: Callable[[], Pending]) -> int:
    """The handle of what `start` starts."""
    return internal(lambda: session.current().add(start()))


def add_group(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    kind: str,
    start: Callable[[torch.Tensor, str | None], Pending],
) -> int:
    """One handle for operations that `start` starts, each under a name of its own."""
    tensors = list(tensors)
    names = group_names(name, kind, len(tensors))
    return add(lambda: Several([start(each, own) for each, own in zip(tensors, names)]))


def poll(handle: int) -> bool:
    """Whether synchronize(handle) would return at once. ValueError for a handle that is none.

    The first answer is no, as from Horovod, where no operation is over when its call returns: some
    programs find out in this way whether it is asynchronous.
    """
    life = internal(session.current)
    pending = life.find(handle)
    if pending is None:
        raise ValueError(f"handle {handle!r} was never given out, or is synchronized already")
    return internal(pending.poll) and not life.is_first_question(handle)


def synchronize(handle: int) -> Any:
    """Waits and returns the result: a tensor or a tuple; None for a handle that was synchronized."""
    pending = internal(lambda: session.current().take(handle))
    return None if pending is None else internal(pending.wait)
