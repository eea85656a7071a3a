# SPDX-License-Identifier: Apache-2.0
"""The works that a process group's sends and receives return."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from talweg._collectives.channels import Channel, Job
from talweg._collectives.collectives import Given, Rows
from talweg.errors import Mismatch
from talweg.torch._c10d_tensors import Outputs, said
from talweg.torch._group_calls import GroupCalls
from talweg.torch._message_rounds import are_alike, name_of
from talweg.torch._work import Pending, late

Lock = AbstractContextManager[Any]  # threading has no name for the type of an RLock.
# How soon a signal's handler in Python runs while a thread waits for any source.
_SLICE_S = 0.5


class MessageJob(Job):
    """The job of one call that carries messages. It calls `ended` with its error, or None.

    `is_wanted` tells whether more than its own message depends on its end. Then it must end even
    if no thread waits for that message.
    """

    def __init__(
        self,
        channel: Channel,
        steps: Callable[[], Any],
        ended: Callable[[BaseException | None], None],
        is_ready: Callable[[], bool] = lambda: True,
        is_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(channel, [steps], is_ready)
        self._ended = ended
        self._is_wanted = is_wanted

    @property
    def pushes_more(self) -> bool:
        return super().pushes_more or self._is_wanted()

    def _end(self) -> None:
        self._ended(self.failure)


@dataclass
class Posted:
    """The arguments of one send or receive."""

    given: Given
    tensor: torch.Tensor
    what: Callable[[], str]  # Returns a text for people that says what call it is.
    timeout_s: float
    source: int  # The sender's place in the group; -1 for any rank.
    tag: int


class Message(Pending):
    """A send or a receive.

    `lock` guards all messages of the group. A thread that holds it sees a message that is over, or
    that has a line of jobs. The first job of the line carries the message on. Without a line the
    completion threads do.
    """

    def __init__(self, group: GroupCalls, lock: Lock, posted: Posted) -> None:
        super().__init__(group, posted.what, [posted.tensor], posted.timeout_s, posted.source)
        self.given = posted.given
        self._site = posted.given.site
        self.tag = posted.tag
        self.line: deque[MessageJob] | None = None
        self._completions = group.client.completions
        self._of_all = lock
        self._over = threading.Event()
        self._ended_with: BaseException | None = None
        self._calls: list[Callable[[], None]] = []

    def end(self, failure: BaseException | None) -> None:
        """Ends the message. The caller holds the lock."""
        self._ended_with = failure
        self._over.set()
        self.line = None  # The line's jobs refer to the message.
        calls, self._calls = self._calls, []
        for call in calls:
            self._completions.call(call)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def _job(self) -> MessageJob | None:
        with self._of_all:
            return self.line[0] if self.line and not self._over.is_set() else None

    def _is_over(self) -> bool:
        return self._over.is_set()

    def _go_on(self, end: float) -> bool:
        while not self._over.is_set():
            job = self._job()
            if job is not None:
                job.channel.finish(job, end)
            else:
                self._over.wait(min(_SLICE_S, max(0.0, end - time.monotonic())))
            if time.monotonic() >= end:
                break
        return self._over.is_set()

    def _look(self) -> bool:
        # The job may end without the message, and leave it to the next one.
        while (job := self._job()) is not None and job.channel.look(job):
            pass
        return self._over.is_set()

    def call_when_done(self, call: Callable[[], None]) -> None:
        with self._of_all:
            if not self._over.is_set():
                self._calls.append(call)
            else:
                self._completions.call(call)
        job = self._job()
        if job is not None:
            job.channel.call_when_done(job, lambda: None)

    def _bring(self) -> BaseException | None:
        return self._ended_with

    def _who_is_late(self) -> str:
        job = self._job()
        return late(job.channel.waits_for() if job is not None else "")


class Receive(Message):
    """A receive. If it takes from any rank, its source is known when a message has come."""

    def __init__(self, group: GroupCalls, lock: Lock, posted: Posted) -> None:
        super().__init__(group, lock, posted)
        self.order = 0  # How many receives were made before it.
        self._output = Outputs([posted.tensor], "recv")
        self._output.begin()
        self._got: Any = None

    def name(self) -> bytes:
        return name_of(self.tag, self.given)

    def comes_from(self, place: int, rank: int) -> None:
        """Notes that the receive gets a message from `rank`, which has that place in the group."""
        self._source, self.given.root_rank = place, rank

    def takes(self, rows: Rows) -> bool:
        assert self.given.rows is not None
        return are_alike(rows, self.given.rows)

    def land(self, rows: Rows) -> int:
        """Returns the address for the data; raises Mismatch if the message does not fit."""
        if not self.takes(rows):
            shown = f"{rows.dtype}{list(rows.row_shape)}"
            raise Mismatch(
                f"recv: {shown} has come from rank {self._source} of the group, but the output is "
                f"{said(self._outputs[0])}: make it as long as what is sent"
            )
        self._got, address = self._output.allocate(rows, [1])
        return address

    def _bring(self) -> BaseException | None:
        if self._ended_with is None:
            self._output.finish(self._got)
        return self._ended_with

    def _who_is_late(self) -> str:
        if self.line is None:
            return "nobody has sent anything with this tag"
        return super()._who_is_late()
