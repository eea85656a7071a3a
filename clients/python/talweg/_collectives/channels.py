# SPDX-License-Identifier: Apache-2.0
"""Calls that belong together by their order, and who carries them on.

A call is a generator that pushes rounds and yields what it waits for. The calls of a *channel* run
one after another; those of different channels at once. The second call of a channel begins early
where the first one says that it may (Wait.next_may_begin): it pushes what it can, so that a link
does not rest between the two. No thread belongs to a channel:

- The thread that makes a call begins it, if no other call of the channel is open. It pushes the
  first rounds at once, or as soon as the call's data is there.
- A thread that waits for a call carries on the calls before it, and then that call. One thread at a
  time does so.
- The client's completion thread carries on a call that nobody waits for, when the call's rounds are
  over. It does so if another call follows, if the call has further rounds to push, or if somebody
  wants to be called when it is done. Any other call whose rounds are all pushed needs no thread:
  other ranks have what they need of this rank.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from talweg import _interrupts
from talweg._client import Client
from talweg._collectives.process_sets import Group
from talweg._declaration import DType, Op
from talweg.errors import Aborted, Mismatch, TalwegError, Timeout


@dataclass(eq=False)
class Wait:
    """A round that a call waits for."""

    tensor: int
    round: int
    out: int
    out_bytes: int
    pushes_more: bool = True  # The call has rounds to push after it.
    # Where each part goes, and the room there. None: all go to `out`, one after another.
    places: tuple[list[int], list[int]] | None = None
    # This is the call's last round, and the next call's first rounds go through other tensors.
    next_may_begin: bool = False
    # At this time of time.monotonic(), Timeout is raised where the call yielded this Wait.
    until: float | None = None
    # The call waits for this instead of a round (Given.is_ready).
    is_ready: Callable[[float | None], bool] | None = None


# How soon a thread that waits for a round sees that its channel is aborted, in seconds.
_SLICE_S = 0.25

# If the round ends without a result, its error is raised where the call yielded.
Steps = Generator[Wait, None, Any]


class Channel:
    """Calls of one group that run one after another, in the order in which they were made."""

    def __init__(self, client: Client, name: str, group: Group) -> None:
        self.client = client
        self.name = name
        self.group = group
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        # Its holder carries on the first job.
        self._carrying = threading.Lock()
        self._told = False  # A round is over that a thread may have to carry on.
        self._aborted: TalwegError | None = None
        # Whether a call has failed for a reason other than ranks' calls that did not fit together.
        self.has_failed = False
        self.calls = 0  # The control rounds of the calls that were made in the channel.
        self._tensors: dict[tuple[Any, ...], int] = {}
        self._over = Job(self, [])
        self._over.done = True

    def __len__(self) -> int:
        """The number of tensors that the channel has declared."""
        return len(self._tensors)

    def declare(
        self, name: str, dtype: DType, op: Op, shares: tuple[int, int], root: int, count: int
    ) -> int:
        """Returns the tensor of that name and shape, for the channel's group."""
        key = (name, dtype, op, shares, root, count)
        tensor = self._tensors.get(key)
        if tensor is None:
            tensor = self.client.connection.declare_collective(
                f"{name}{self.group.suffix}", dtype, op, shares, root, self.group.listed, count
            )
            self._tensors[key] = tensor
        return tensor

    def has_declared(self, *spec: Any) -> bool:
        """Whether declare() has declared that tensor."""
        return spec in self._tensors

    def submit(self, job: Job, is_async: bool = True) -> None:
        """Begins `job` if it is the first. `is_async`: perhaps nobody waits for it soon."""
        with _interrupts.held:
            with self._lock:
                self._jobs.append(job)
                self.calls += job.call_count
            if self._carrying.acquire(blocking=False):
                try:
                    if self._jobs and self._jobs[0] is job:
                        job.begin()
                        self._drop_done()
                    else:
                        self._begin_second()
                    if is_async:
                        self._see_to_rest()
                finally:
                    self._let_go()
            elif is_async:
                # Who carries the others on may be gone before it has seen this one.
                self.client.completions.call(self._carry_what_is_over)

    def run_first(self, call: Callable[[], int], later: Callable[[int], Job]) -> Job | None:
        """Makes a call on this thread if no other call is open, else returns None.

        `call` pushes its only round. It returns 0 when the round is over, else that round. In the
        second case the job that `later` makes of it comes before jobs submitted meanwhile.
        """
        with _interrupts.held:
            if self._jobs or not self._carrying.acquire(blocking=False):
                return None
            try:
                if self._jobs:
                    return None
                round_ = call()
                with self._lock:
                    self.calls += 1
                if round_ == 0:
                    return self._over
                job = later(round_)
                with self._lock:
                    self._jobs.appendleft(job)
                job.begin()
                return job
            except Exception as failure:
                self.has_failed = True
                return Job.failed(self, failure)
            finally:
                if self._jobs:
                    self._see_to_rest()
                self._let_go()

    def end_before_control_round(self) -> None:
        """Notes that a submitted call has ended before its control round, at every rank alike."""
        with self._lock:
            self.calls -= 1

    def begin_further_control_round(self) -> None:
        """Notes that an open call begins another control round, at every rank alike."""
        with self._lock:
            self.calls += 1

    def is_as_new(self) -> bool:
        """Whether others may use the channel: no call is open, and no failed call goes on
        elsewhere.
        """
        self.attend()
        return not self._jobs and not self.has_failed and self._aborted is None

    @property
    def aborted(self) -> TalwegError | None:
        """The error that each call raises. None: the channel is not aborted."""
        return self._aborted

    def abort(self, failure: TalwegError) -> None:
        """Ends all calls of the channel with `failure`, soon, and also later calls. Other ranks
        wait for this rank until their time limit, or until it has left.
        """
        self._aborted = self._aborted or failure
        self._carry_what_is_over()  # The thread that carries them on sees it too.

    def waits_for(self) -> str:
        """Returns a text that says whom the first open call waits for; empty if it is not known."""
        with self._lock:
            first = self._jobs[0] if self._jobs else None
        wait = first.waits_for if first is not None else None
        if wait is None:
            return ""
        if wait.is_ready is not None:
            return "the GPU of this rank, which has work to do before the call"
        return self.client.connection.waits_for(wait.tensor, wait.round)

    def finish(self, job: Job, end: float | None = None) -> bool:
        """Carries on submitted calls until `job` is done. Returns False if time.monotonic() passes
        `end` before.
        """
        while not job.done:
            with _interrupts.held:
                left = _SLICE_S if end is None else max(0.0, end - time.monotonic())
                if self._carrying.acquire(timeout=min(left, _SLICE_S)):
                    try:
                        while not job.done and self._carry_first(end):
                            self._drop_done()
                    finally:
                        self._see_to_rest()
                        self._let_go()
            if end is not None and time.monotonic() >= end:
                break
        return job.done

    def push_rest(self, end: float) -> None:
        """Pushes what other ranks need of this leaving rank, until time.monotonic() is `end`."""
        while self._jobs and self._carrying.acquire(timeout=max(0.0, end - time.monotonic())):
            try:
                self._drop_done()
                if len(self._jobs) < 2 and not (self._jobs and self._jobs[0].pushes_more):
                    return
                if not self._carry_first(end):
                    return
            finally:
                self._let_go()

    def look(self, job: Job) -> bool:
        """Carries on calls as far as possible without waiting. Returns whether `job` is done."""
        if not job.done:
            self._look()
        return job.done

    def attend(self) -> None:
        """Does the same as look(), for a thread that waits for other ranks elsewhere."""
        if self._jobs:
            self._look()

    def _look(self) -> None:
        with _interrupts.held:
            if self._carrying.acquire(blocking=False):
                try:
                    self._carry_over()
                    self._see_to_rest()
                finally:
                    self._let_go()

    def call_when_done(self, job: Job, call: Callable[[], None]) -> None:
        """Has another thread make `call`, which may block, when `job` is done."""
        with _interrupts.held:
            with self._lock:
                if not job.done:
                    job.calls.append(call)
                    call = self._carry_what_is_over
            if call != self._carry_what_is_over or not self._carrying.acquire(blocking=False):
                self.client.completions.call(call)
                return
            try:
                self._see_to_rest()
            finally:
                self._let_go()

    # ----- With _carrying -----

    def _drop_done(self) -> None:
        """Removes the jobs that are done, has their calls made, and begins the next job."""
        while self._jobs and self._jobs[0].done:
            with self._lock:
                done = self._jobs.popleft()
                calls, done.calls = done.calls, []
            # At once: other ranks may need what is called before they go on with the next job.
            for call in calls:
                self.client.completions.call(call)
            if self._jobs:
                self._jobs[0].begin()

    def _begin_second(self) -> None:
        """Begins the call after the first one, if both allow it."""
        if len(self._jobs) > 1 and self._jobs[0].lets_next_begin:
            second = self._jobs[1]
            if second.is_ready():
                second.begin()

    def _carry_first(self, end: float | None) -> bool:
        """Runs the first call to its end. Returns False if time.monotonic() passes `end` before."""
        first = self._jobs[0]
        while not first.done:
            self._begin_second()
            if not first.carry_on(end):
                return False
            _interrupts.deliver()
        return True

    def _carry_over(self) -> None:
        now = time.monotonic()
        while self._jobs and self._carry_first(now):
            self._drop_done()

    def _see_to_rest(self) -> None:
        """Leaves the remaining work of this thread to completion threads, if any is needed."""
        self._drop_done()
        while self._jobs:
            first = self._jobs[0]
            first.begin()
            self._begin_second()
            wait = first.waits_for
            if wait is not None:
                if len(self._jobs) == 1 and not first.calls and not first.pushes_more:
                    return
                if first.watched is wait:
                    return
                first.watched = wait
                if wait.is_ready is not None:
                    self.client.completions.call(partial(self._carry_when, wait.is_ready))
                    return
                if self.client.completions.watch(wait.tensor, wait.round, self._carry_what_is_over):
                    if wait.until is not None:
                        deadlines = self.client.deadlines
                        deadlines.call_at(wait.until, self._carry_what_is_over)
                    return
            # Nothing tells of it; where the client's health has ended no wait is long.
            self._carry_first(None)
            self._drop_done()

    def _let_go(self) -> None:
        self._carrying.release()
        # A thread that sets it and finds _carrying taken leaves the work to this thread.
        if self._told:
            self._carry_what_is_over()

    def _carry_when(self, is_ready: Callable[[float | None], bool]) -> None:
        """Carries calls on when the first one's data is there. Runs on a thread that may block."""
        with contextlib.suppress(TalwegError):  # The call raises the error again, and ends with it.
            is_ready(None)
        self._carry_what_is_over()

    def _carry_what_is_over(self) -> None:
        """Does the work of a completion thread. Waits for nothing."""
        with _interrupts.held:
            self._told = True
            while self._told and self._carrying.acquire(blocking=False):
                try:
                    self._told = False
                    if self._jobs:
                        self._jobs[0].watched = None
                    self._carry_over()
                    self._see_to_rest()
                finally:
                    self._carrying.release()


class Job:
    """One or several calls that have one handle.

    `is_ready` tells whether the first rounds can be pushed without waiting for another rank, which
    a job does whose tensors are not declared yet. Only then it begins beside the call before it.
    """

    def __init__(
        self,
        channel: Channel,
        calls: Sequence[Callable[[], Steps]],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.channel = channel
        self.is_ready = is_ready
        self.done = False
        self.results: list[Any] = []
        self.failure: BaseException | None = None
        # These are made when the job is done.
        self.calls: list[Callable[[], None]] = []
        self.watched: Wait | None = None
        self.waits_for: Wait | None = None
        self.call_count = len(calls)
        self._left = deque(calls)
        self._steps: Steps | None = None

    @classmethod
    def failed(cls, channel: Channel, failure: BaseException) -> Job:
        """Returns a job that has failed before it was submitted."""
        job = cls(channel, [])
        job.done, job.failure = True, failure
        return job

    @property
    def pushes_more(self) -> bool:
        """Whether other ranks need more rounds of this job than have been pushed."""
        return self.waits_for is None or self.waits_for.pushes_more or len(self._left) > 1

    @property
    def lets_next_begin(self) -> bool:
        """Whether the channel's next call may already push its first rounds."""
        wait = self.waits_for
        return wait is not None and wait.next_may_begin and len(self._left) == 1

    def begin(self) -> None:
        """Pushes the job's first rounds. A second call does nothing."""
        if self._steps is None and not self.done:
            self._run(self._go_on)

    def carry_on(self, end: float | None) -> bool:
        """Takes the round that the job waits for, and goes on to the next round. Returns False if
        time.monotonic() passes `end` before.
        """
        return self.done or self._run(lambda: self._take(end))

    def _run(self, step: Callable[[], bool]) -> bool:
        """Runs `step`. An error that it raises is the call's failure."""
        try:
            return step()
        except StopIteration as end:
            self.results.append(end.value)
        except Mismatch as mismatch:
            # The other calls of the job go on at every rank, where all have as many.
            self.failure = self.failure or mismatch
            if mismatch.ends_all:  # No rank makes the others.
                for _ in range(len(self._left) - 1):
                    self.channel.end_before_control_round()
                self._left.clear()
        except Exception as failure:
            self._fail(failure)
        except BaseException:  # A signal's handler has raised it.
            if not self._is_cut_off():
                raise  # The call can be carried on.
            self._fail(Aborted("the call was interrupted while this rank pushed it"))
            self._steps = self.waits_for = None
            self._end()
            self.done = True
            raise
        self._steps = self.waits_for = None
        if self._left:
            self._left.popleft()
        if not self._left:
            self._end()
            self.done = True
        return True

    def _fail(self, failure: BaseException) -> None:
        self.failure = self.failure or failure
        self.channel.has_failed = True
        self._left.clear()

    def _is_cut_off(self) -> bool:
        """Whether the call's steps have ended with what they raised."""
        return (
            self._steps is not None and inspect.getgeneratorstate(self._steps) == inspect.GEN_CLOSED
        )

    def _end(self) -> None:
        """Ends the job, just before it is `done`. Called by the thread that carries it on."""

    def _go_on(self) -> bool:
        if self.channel.aborted is not None:
            raise self.channel.aborted
        if self._steps is None:
            if not self._left:
                self.done = True
                return True
            self._steps = self._left[0]()
        self.waits_for = next(self._steps)
        return True

    def _take(self, end: float | None) -> bool:
        wait, steps = self.waits_for, self._steps
        if self.channel.aborted is not None:
            if steps is not None:
                steps.close()
            raise self.channel.aborted
        if wait is None or steps is None:
            return self._go_on()
        connection = self.channel.client.connection
        ends = [each for each in (end, wait.until) if each is not None]
        slice_end = min([time.monotonic() + _SLICE_S, *ends])
        try:
            if wait.is_ready is not None:
                over = wait.is_ready(slice_end)
            elif wait.places is not None:
                over = connection.wait_places(wait.tensor, wait.round, *wait.places, slice_end)
            else:
                room = (wait.out, wait.out_bytes)
                over = connection.wait_parts(wait.tensor, wait.round, *room, slice_end)
            if not over:
                now = time.monotonic()
                if wait.until is not None and now >= wait.until:
                    raise Timeout("its time is over")
                return end is None or now < end
        except TalwegError as failure:
            self.waits_for = None
            self.waits_for = steps.throw(failure)
            return True
        self.waits_for = None
        self.waits_for = next(steps)
        return True
