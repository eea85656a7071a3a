# SPDX-License-Identifier: Apache-2.0
"""Collectives of any shape, for every framework: docs/collectives.md says what each does.

Calls without a name belong together by their order, which is the same at every rank of a group;
calls with a name by their order under that name. Each such sequence of calls is a *channel*: the
calls of one channel run one after another, those of different channels at once.

A call begins with a round of the channel's control tensor, an all_gather: each rank says what it
calls and how long its parts are, and gives its data in the same round where that is 4 KiB or less.
All ranks compare what the others have said, and all come to the same answer: Mismatch. The data of
a reduction leaves together with the control round, in a round of its own: all ranks know where it
goes, since they all give the same. If they turn out to differ each rank also takes part in the
rounds that the others have begun, with nothing, so that these end. Longer copies follow when all
ranks know how long. So a call takes

    copies of at most 4 KiB a rank       1 round
    all reductions                       2 rounds at once
    other copies                         2 rounds, one after the other
    what is longer than 32 MiB           1 round for each 8 MiB of all parts that are copied, or for
                                         each 16 MiB that are reduced

The data goes through tensors whose lengths are powers of two, with parts that are shorter. A
channel has few of them, so memory stays flat however often shapes change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from talweg._call_site import call_site
from talweg._client import Client, Handle
from talweg._client.left_rounds import finish_call
from talweg._collectives import one_call, survivors_gather
from talweg._collectives.call_channel import CallChannel, channel_of
from talweg._collectives.call_data import lane_of_given
from talweg._collectives.channels import Job, Steps
from talweg._collectives.kinds import (
    ALL_GATHER,
    ALL_GATHER_INTO,
    ALL_GATHER_OF_SOME,
    ALL_GATHER_SURVIVORS,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    GATHER,
    MORE_MAX,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
    Given,
    Kind,
    Rows,
    split_evenly,
)
from talweg._collectives.process_sets import Group
from talweg._library import native, native_arguments
from talweg.errors import TalwegError, Timeout


def job_of(channel: CallChannel, calls: Sequence[Given], priority: int) -> Job:
    """Returns the job of calls that have one handle."""
    ready = partial(can_begin, channel, calls[0]) if calls else lambda: True

    def begin(given: Given) -> Steps:
        goes_on = given.kind is ALL_GATHER_SURVIVORS
        steps = survivors_gather.steps if goes_on else one_call.steps
        return steps(channel, given, priority)

    return Job(channel, [partial(begin, given) for given in calls], ready)


def can_begin(channel: CallChannel, given: Given) -> bool:
    """Whether the call's data is there, and the tensors of its first rounds are declared."""
    if given.is_ready is not None:
        try:
            if not given.is_ready(0.0):
                return False
        except TalwegError:
            return True  # The call begins, and ends with it.
    if not given.kind.reduces or given.rows is None:
        return True
    lanes = [lane_of_given(channel, given, turn) for turn in (0, 1)]
    return all(lane is None or channel.has_lane(lane) for lane in lanes)


@dataclass(eq=False)
class JobHandle(Handle):
    """The handle of a Job."""

    job: Job | None = None
    # Turns the calls' results into the caller's result.
    shape: Callable[[list[Any]], Any] = field(default=lambda results: results[0])
    call: str = "push_pull"  # What the program has called.

    def is_complete(self, connection: native.Connection) -> bool:
        assert self.job is not None
        return self.job.channel.look(self.job)

    def waits_for(self) -> str:
        assert self.job is not None
        return self.job.channel.waits_for()

    def call_when_complete(self, call: Callable[[], None]) -> None:
        assert self.job is not None
        self.job.channel.call_when_done(self.job, call)

    def leave(self) -> None:
        """Leaves the call. Other ranks may still need more rounds, if they call something else."""
        assert self.job is not None
        self.job.channel.call_when_done(self.job, lambda: None)

    @property
    def title(self) -> str:
        assert self.job is not None
        channel = self.job.channel
        name = channel.title if isinstance(channel, CallChannel) else channel.name
        return f"'{name}{channel.group.suffix}'"

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        native_arguments.nanoseconds(timeout_s)  # Raises InvalidArgument for an invalid time.
        assert self.job is not None
        end = None if timeout_s is None else time.monotonic() + min(timeout_s, 1e8)
        if not self.job.channel.finish(self.job, end):
            who = self.waits_for() if timeout_s else ""
            late = f"; it still waits for {who}" if who else ""
            raise Timeout(
                f"{self.title}: not complete after {timeout_s} s; synchronize() again{late}"
            )
        if self.job.failure is not None:
            raise self.job.failure
        self.result = self.shape(self.job.results)


def start(
    client: Client,
    name: str | None,
    group: Group,
    calls: Sequence[Given],
    priority: int,
    shape: Callable[[list[Any]], Any],
    is_async: bool = True,
    title: str = "",
) -> JobHandle:
    """Starts calls that have one handle. `is_async`: perhaps nobody waits for it soon. `title`
    stands for the name in error texts.
    """
    native_arguments.check_name_and_priority("none" if name is None else name, priority)
    channel = channel_of(client, name, group, title)
    site = call_site()
    for following, call in enumerate(reversed(calls)):
        call.site, call.more = site, min(following, MORE_MAX)
    job = job_of(channel, calls, priority)
    channel.submit(job, is_async)
    call_name = (calls[0].call or calls[0].kind.name) if calls else ""
    return JobHandle(client, 0, 0, channel.name, job=job, shape=shape, call=call_name)


def run(
    client: Client,
    name: str | None,
    group: Group,
    calls: Sequence[Given],
    priority: int,
    shape: Callable[[list[Any]], Any],
    timeout_s: float | None,
    title: str = "",
) -> Any:
    """Runs calls on this thread. `title`: as in start()."""
    client.check_timeout(timeout_s)
    handle = start(client, name, group, calls, priority, shape, False, title)
    return finish_call(client, handle, timeout_s)


__all__ = [
    "ALL_GATHER",
    "ALL_GATHER_INTO",
    "ALL_GATHER_OF_SOME",
    "ALL_GATHER_SURVIVORS",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "BARRIER",
    "BROADCAST",
    "GATHER",
    "REDUCE",
    "REDUCE_SCATTER",
    "SCATTER",
    "SEND",
    "Given",
    "JobHandle",
    "Kind",
    "Rows",
    "TalwegError",
    "run",
    "split_evenly",
    "start",
]
