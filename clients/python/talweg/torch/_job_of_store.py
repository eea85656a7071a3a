# SPDX-License-Identifier: Apache-2.0
"""Joins the job of Talweg for the ranks of init_process_group().

Ranks whose job this module has made stay in that job for the next init_process_group(), unless the
new group has other ranks, or other numbers for them. They agree on that through torch's store:

    all ranks are in one job, with these numbers      they stay
    one is in no job, in another, or another number   all leave their jobs, and join a new one

A rank never leaves a job that the program itself has joined, or whose agent ran before.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import talweg
from talweg import _at_exit, _client
from talweg._client import Client
from talweg._node.launchers import World
from talweg._node.meeting import all_say
from talweg.errors import InvalidArgument
from talweg.torch._uncompiled import leave_package_uncompiled

leave_package_uncompiled()

_JOB, _STAY = "job", "stay"


@dataclass(frozen=True)
class _Joined:
    """The job that this process has joined last."""

    client: Client
    name: bytes  # The same at all ranks of the job, and at no rank of another one.
    world: weakref.ref[Any] | None  # The group of all ranks, if another backend has it.


_joined: _Joined | None = None


def has_joined_for(world: Any) -> bool:
    """Whether this process is in a job for the ranks of `world`, or in a job of the program's."""
    if not talweg.is_initialized():
        return False
    return not _may_leave() or (
        _joined is not None and _joined.world is not None and _joined.world() is world
    )


def _may_leave() -> bool:
    """Whether this module has made the job that this process is in."""
    client = _client.current()
    is_made_here = _joined is not None and _joined.client is client
    return is_made_here and (client.is_alone or client.attachment is not None)


def _may_stay(joined: _Joined, store: Any, rank: int, size: int) -> bool:
    """Whether this rank's job is the one that other ranks have named, and has these numbers."""
    fits = (rank, size) == (talweg.rank(), talweg.size())
    return fits and store.compare_set(_JOB, "", joined.name.decode()) == joined.name


def join(store: Any, rank: int, size: int, timeout_s: float, world: Any = None) -> None:
    """Joins the job of torch's ranks, as `rank` of `size`, or stays in it.

    `world` is the group of all ranks, if another backend has it. Raises InvalidArgument if the
    process stays in a job in which it has other numbers.
    """
    global _joined
    # A store may outlive a group, so each group has keys of its own in it.
    times = store.add(f"talweg.{size}.{rank}", 1)
    store = dist.PrefixStore(f"talweg.{size}.{times}", store)
    if not talweg.is_initialized():
        all_say(False, store, _STAY, size, timeout_s)
    elif _may_leave():
        assert _joined is not None
        if not all_say(_may_stay(_joined, store, rank, size), store, _STAY, size, timeout_s):
            talweg.shutdown()
    if not talweg.is_initialized():
        client = _client.connect(None, timeout_s, world=World(store, rank, size))
        _at_exit.register(talweg.shutdown)
        name = store.compare_set(f"{_JOB}.new", "", os.urandom(16).hex())
        _joined = _Joined(client, name, None)
    if _joined is not None:
        _joined = _Joined(_joined.client, _joined.name, weakref.ref(world) if world else None)
    if (rank, size) != (talweg.rank(), talweg.size()):
        raise InvalidArgument(
            f"init_process_group: torch has rank {rank} of {size}, but Talweg's job has this "
            f"process as rank {talweg.rank()} of {talweg.size()}: start the program with "
            "`talweg run`, which sets RANK and WORLD_SIZE, or pass rank=talweg.rank() and "
            "world_size=talweg.size()"
        )
