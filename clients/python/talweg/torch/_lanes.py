# SPDX-License-Identifier: Apache-2.0
"""The channels that the process groups of the same ranks have one after another.

A tensor exists until the job ends, at every rank and agent. So a group has a *lane*: a prefix of
its channels' names. When the group is destroyed, another group may take the lane. Ranks destroy a
group in their own time, and may leave calls of it open. So they agree on the lane when they make a
group: it is the first lane that is free at all of them. The first group of some ranks needs no
agreement, because only one lane exists for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from talweg._call_site import call_site
from talweg._client import Client
from talweg._collectives.call_channel import CallChannel, channel_of
from talweg._collectives.collectives import ALL_GATHER, Given, Rows, job_of
from talweg._collectives.process_sets import Group
from talweg.errors import Timeout


@dataclass(eq=False)
class Lane:
    """A lane. At most one group has it at a time."""

    client: Client
    group: Group
    name: str
    is_taken: bool = True
    channels: set[CallChannel] = field(default_factory=set)

    def channel(self, name: str = "", group: Group | None = None) -> CallChannel:
        """Returns the channel of that name, of the lane's ranks or of some of them."""
        channel = channel_of(self.client, f"{self.name}{name}", group or self.group)
        self.channels.add(channel)
        return channel

    def is_free(self) -> bool:
        """Whether no group has it, or has left calls open that other ranks may still make."""
        return not self.is_taken and all(channel.is_as_new() for channel in self.channels)

    def let_go(self) -> None:
        """Gives the lane back, because its group is destroyed."""
        self.is_taken = False


@dataclass
class _Lanes:
    """The lanes of all groups of the same ranks, while these ranks have the same numbers."""

    lanes: list[Lane | None] = field(default_factory=list)  # None: this rank has not made it yet.
    groups: int = 0


def take_lane(client: Client, group: Group, timeout_s: float) -> Lane:
    """Returns the lane of a new group, which all its ranks make. Raises Timeout if some do not."""
    of_ranks: _Lanes = client.lanes.setdefault(tuple(group.ranks), _Lanes())
    of_ranks.groups += 1
    lanes = of_ranks.lanes
    free: np.ndarray = np.array([each is not None and each.is_free() for each in lanes], np.uint8)
    every = [free]
    if of_ranks.groups > 1 and group.size > 1:
        every = _every_free(client, group, free, timeout_s)
    # A lane is free only if each rank says so: lists may have different lengths.
    longest = max(map(len, every))
    both = (at for at in range(longest) if all(at < len(each) and each[at] for each in every))
    number = next(both, longest)
    lanes += [None] * (number + 1 - len(lanes))
    lane = lanes[number]
    if lane is None:
        lane = lanes[number] = Lane(client, group, f"c10d.{number}{group.suffix}")
    lane.is_taken = True
    return lane


def _every_free(
    client: Client, group: Group, free: np.ndarray, timeout_s: float
) -> list[np.ndarray]:
    """Returns what each rank says of its lanes: 1 for each that is free, else 0."""

    def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
        told: np.ndarray = np.empty(sum(counts), np.uint8)
        return (told, counts), int(told.ctypes.data)

    channel = channel_of(client, "c10d.lanes", group)
    rows = Rows("uint8", (), 1)
    given = Given(ALL_GATHER, 0, rows, [free.size], int(free.ctypes.data), free, allocate)
    given.site = call_site()
    job = job_of(channel, [given], 0)
    channel.submit(job, is_async=False)
    if not channel.finish(job, time.monotonic() + min(timeout_s, 1e8)):
        who = channel.waits_for()
        raise Timeout(
            f"rank {client.rank}: a process group of ranks {list(group.ranks)}: timeout after "
            f"{timeout_s:g} s: it still waits for {who or 'others to make it'}"
        )
    if job.failure is not None:
        raise job.failure
    told, counts = job.results[0]
    return np.split(told, np.cumsum(counts)[:-1])
