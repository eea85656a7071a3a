# SPDX-License-Identifier: Apache-2.0
"""Calls that the ranks compare before they make them: those without a name, where nodes come and go.

Elsewhere the control round of such a call says what each rank brings, and its data goes beside it.
Both need every rank. But a reduction goes on without ranks that are lost, so its data goes through a
tensor that all have agreed on. Which one that is follows from what is called. So ranks whose calls
differ would wait for each other for ever, and the calls are compared first:

    compared   a control round without data: each rank says what it calls
    alike      the call is made
    lost       the control round was aborted, as a rank is gone: the call is made all the same
    apart      Mismatch at every rank: no rank makes the call
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives import one_call
from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Channel, Job, Steps
from talweg._collectives.collectives import JobHandle
from talweg._collectives.kinds import Given, Rows
from talweg._collectives.nameless_groups import NamelessGroup
from talweg._collectives.scaling import NO_FACTORS
from talweg._library import native
from talweg.errors import Aborted


def _nothing_of(rows: Rows, counts: list[int]) -> tuple[Any, int]:
    return None, 0


def compare(channel: CallChannel, given: Given, priority: int) -> Steps:
    """Returns if all ranks bring the same, or one of them is gone. Raises Mismatch otherwise."""
    words = replace(
        given,
        part_rows=[0] * len(given.part_rows),
        address=0,
        keep=None,
        allocate=_nothing_of,
        factors=NO_FACTORS,
    )
    try:
        yield from one_call.steps(channel, words, priority)
    except Aborted:
        pass


@dataclass(eq=False)
class _MadeLater(JobHandle):
    """A call that is made when `job` is done. The job's result is the handle of the call itself."""

    @property
    def _made(self) -> Handle | None:
        """Returns the handle of the call itself, once the call is made."""
        job = self.job
        assert job is not None
        made: Handle | None = job.results[0] if job.done and job.failure is None else None
        return made

    def is_complete(self, connection: native.Connection) -> bool:
        if not super().is_complete(connection):
            return False
        made = self._made
        return made is None or made.taken or made.is_complete(connection)

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        begin = time.monotonic()
        super().take(connection, timeout_s)
        made = self._made
        assert made is not None
        left = None if timeout_s is None else max(0.0, begin + timeout_s - time.monotonic())
        self.result = self.client.finish(made, left)
        self.ranks_summed = made.ranks_summed

    def call_when_complete(self, call: Callable[[], None]) -> None:
        job, made = self.job, self._made
        assert job is not None
        if made is not None:
            made.call_when_complete(call)
        elif job.done:
            self.client.completions.call(call)
        else:
            job.channel.call_when_done(job, lambda: self.call_when_complete(call))

    def waits_for(self) -> str:
        made = self._made
        return super().waits_for() if made is None else made.waits_for()

    def leave(self) -> None:
        assert self.job is not None

        def leave_made() -> None:
            if self._made is not None:
                self._made.leave()

        self.job.channel.call_when_done(self.job, leave_made)


class Comparisons:
    """The calls of one client that are made later. A step ends, or a rank joins, after that."""

    def __init__(self, client: Client) -> None:
        self._open: deque[Job] = deque()
        self._lock = threading.Lock()
        _client.call_at_end_of_step(self.finish)

    def add(self, job: Job) -> None:
        with self._lock:
            while self._open and self._open[0].done:
                self._open.popleft()
            self._open.append(job)

    def finish(self) -> None:
        """Returns when every call is made, or has failed."""
        with self._lock:
            jobs = list(self._open)
        for job in jobs:
            job.channel.finish(job)


def start(
    client: Client,
    channel: CallChannel,
    given: Given,
    priority: int,
    is_async: bool,
    make: Callable[[], Handle],
    grouped: NamelessGroup | None = None,
) -> Handle:
    """Makes the ranks compare what they bring. Then `make` starts the call."""

    def steps() -> Steps:
        yield from compare(channel, given, priority)
        return make()

    job = Job(channel, [steps]) if grouped is None else grouped.within(channel, given, steps)
    handle = _later(client, channel, job, is_async)
    if grouped is not None:
        grouped.see_to(job)
    handle.call = given.call
    return handle


def later(
    client: Client, channel: Channel, steps: Callable[[], Steps], is_async: bool
) -> JobHandle:
    """Makes a call at the end of `steps`, whose result is the handle of the call itself."""
    return _later(client, channel, Job(channel, [steps]), is_async)


def _later(client: Client, channel: Channel, job: Job, is_async: bool) -> JobHandle:
    client.companion(Comparisons).add(job)
    channel.submit(job, is_async)
    return _MadeLater(client, 0, 0, channel.name, job=job)
