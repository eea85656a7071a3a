# SPDX-License-Identifier: Apache-2.0
"""push_pull by BytePS's signatures."""

from __future__ import annotations

from typing import Any

import torch

from talweg import _client
from talweg._client import session
from talweg._compat.torch import rounds
from talweg._compat.torch.compression import Compression
from talweg._compat.torch.gradients import require_cast
from talweg._declaration import Op
from talweg.byteps import _asynchrony
from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.errors import InvalidArgument, WrongType

__all__ = [
    "byteps_push_pull",
    "declare",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "synchronize",
]
__all__ += surface.__all__


def _name(name: str | None) -> str | None:
    return None if name is None else f"byteps.{name}"


def _start(
    tensor: torch.Tensor,
    average: bool,
    name: str | None,
    version: int,
    priority: int,
    in_place: bool,
) -> int:
    if not isinstance(version, int) or isinstance(version, bool):
        raise InvalidArgument(f"version is {version!r}; it must be a number, which has no effect")
    if not isinstance(tensor, torch.Tensor):
        raise WrongType(f"push_pull: expected a torch.Tensor, got {type(tensor).__name__}")
    _asynchrony.warn_of_rounds()
    op = Op.AVERAGE if average else Op.SUM
    life, wire_name = session.current(), _name(name)
    if wire_name is not None:
        life.finish(wire_name)
    pending = rounds.push_pull(tensor, op, wire_name, priority, in_place=in_place, rounds_down=True)
    return life.add(pending, wire_name)


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> int:
    """Starts the average, or the sum, of `tensor` over all ranks and returns a handle.

    Calls under one name follow each other: a second call waits until the first one is over. Calls
    without a name are matched by their order. `version` has no effect. Averages of integers round
    down.
    """
    return _start(tensor, average, name, version, priority, False)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> int:
    """Does the same as push_pull_async(), but writes the result into `tensor` itself."""
    return _start(tensor, average, name, version, priority, True)


byteps_push_pull = push_pull_async_inplace


class _PushPull(torch.autograd.Function):
    """The gradient of an average, or a sum, is the average, or the sum, of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, average: bool, name: str | None, version: int, priority: int
    ) -> Any:
        ctx.arguments = average, name, version, priority
        return synchronize(push_pull_async(tensor, average, name, version, priority))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        average, name, version, priority = ctx.arguments
        name = None if name is None else f"{name}.gradient"
        pushed = synchronize(push_pull_async(gradients[0], average, name, version, priority))
        return pushed, None, None, None, None


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> torch.Tensor:
    """Returns the average, or the sum, of `tensor` over all ranks; differentiable."""
    require_cast(compression, "push_pull")
    pushed, context = compression.compress(tensor)
    result = _PushPull.apply(pushed, average, name, version, priority)
    decompressed: torch.Tensor = compression.decompress(result, context)
    return decompressed


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> torch.Tensor:
    """Does the same as push_pull(), but writes the result into `tensor` and returns `tensor`."""
    result: torch.Tensor = synchronize(
        push_pull_async_inplace(tensor, average, name, version, priority)
    )
    return result


def poll(handle: int) -> bool:
    """Whether synchronize(handle) would return without waiting."""
    pending = session.current().find(handle)
    if pending is None:
        raise ValueError(f"handle {handle!r} was never given out, or is synchronized already")
    return pending.poll()


def synchronize(handle: int) -> Any:
    """Waits and returns the result. Returns None if the handle was synchronized before."""
    pending = session.current().take(handle)
    return None if pending is None else pending.wait()


def declare(name: str) -> None:
    """Does nothing: ranks agree on a tensor by name, at its first push_pull, in any order."""
    _client.current()  # Raises NotInitialized before init(), as every call.
    if not isinstance(name, str):
        raise InvalidArgument(f"a tensor's name is a str, not {type(name).__name__}")
