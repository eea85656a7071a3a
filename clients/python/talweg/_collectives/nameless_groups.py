# SPDX-License-Identifier: Apache-2.0
"""Calls of push_pull or broadcast without a name that have one handle.

Each is a call of its own, and two channels take turns for them. Each says in its control round how
many follow. The first one shows whether all ranks make as many: the others wait for it. If ranks
differ, the group ends at once at every rank, so that the next calls belong together again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from talweg._collectives.channels import Channel, Job, Steps, Wait
from talweg._collectives.kinds import MORE_MAX, Given
from talweg.errors import Mismatch

_current = threading.local()


class NamelessGroup:
    """The calls that one thread makes for one handle."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._begun = 0
        self._before = 0  # How many calls and groups without a name came before this one.
        self._first_is_over = threading.Event()
        self._apart: Mismatch | None = None  # What the first call has ended with, and so the group.

    def take_turn(self, count: Callable[[], int]) -> int:
        """Returns which call without a name the next one is. `count` counts the whole group."""
        if self._begun == 0:
            self._before = count()
        self._begun += 1
        return self._before + self._begun - 1

    def within(self, channel: Channel, given: Given, steps: Callable[[], Steps]) -> Job:
        """Returns the job of the call that has taken its turn last."""
        given.more = min(self._count - self._begun, MORE_MAX)
        make = self._first if self._begun == 1 else self._further
        return Job(channel, [lambda: make(channel, steps)])

    def see_to(self, job: Job) -> None:
        """Has a thread carry on the first call, `job`, as the others wait for it."""
        if self._begun == 1 < self._count:
            job.channel.call_when_done(job, lambda: None)

    def _first(self, _: Channel, steps: Callable[[], Steps]) -> Steps:
        try:
            return (yield from steps())
        except Mismatch as mismatch:
            self._apart = mismatch if mismatch.ends_all else None
            raise
        finally:
            self._first_is_over.set()

    def _further(self, channel: Channel, steps: Callable[[], Steps]) -> Steps:
        if not self._first_is_over.is_set():
            yield Wait(0, 0, 0, 0, is_ready=self._may_begin)
        if self._apart is not None:
            channel.end_before_control_round()
            raise self._apart
        return (yield from steps())

    def _may_begin(self, until: float | None) -> bool:
        left = None if until is None else max(0.0, until - time.monotonic())
        return self._first_is_over.wait(left)


def current() -> NamelessGroup | None:
    """Returns the group that this thread makes the calls of. None: it makes single calls."""
    found: NamelessGroup | None = getattr(_current, "group", None)
    return found


@contextlib.contextmanager
def nameless_group(count: int) -> Iterator[None]:
    """A context in which this thread makes so many calls that have one handle."""
    _current.group = NamelessGroup(count)
    try:
        yield
    finally:
        _current.group = None
