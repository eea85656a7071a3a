# SPDX-License-Identifier: Apache-2.0
"""The works that calls of torch.distributed return and wait for."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from talweg._call_site import CallSite, call_site
from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Job
from talweg._collectives.collectives import Given, job_of
from talweg._collectives.kinds import MORE_MAX
from talweg.errors import Timeout
from talweg.torch._backward import when_it_ends
from talweg.torch._callbacks import OwnFuture
from talweg.torch._group_calls import GroupCalls
from talweg.torch._profiling import Range
from talweg.torch._whereabouts import TELL_S


def _is_called_by_engine() -> bool:
    """Whether no Python code is between autograd's engine and the method that asks."""
    frame = sys._getframe(1).f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.autograd")


def _gpus_of(outputs: Any) -> list[torch.device]:
    """Returns the GPUs that a future of the outputs has to know."""
    tensors = [each for each in outputs if isinstance(each, torch.Tensor)]
    gpus = {tensor.device for tensor in tensors if tensor.is_cuda}
    return list(gpus) if torch.cuda.is_available() else []


class Pending(dist.Work):
    """A call that is under way. Any thread may wait for it, as often as it likes.

    Subclasses know how the call goes on. `what` returns a text that says what call it is.
    """

    def __init__(
        self,
        group: GroupCalls,
        what: Callable[[], str],
        outputs: Any,
        timeout_s: float,
        source_rank: int = -1,
    ) -> None:
        super().__init__()
        self._group = group
        self._what = what
        self._outputs = outputs
        self._timeout_s = timeout_s
        self._source = source_rank
        self._site: CallSite | None = None  # Where the program makes the call.
        self._lock = threading.Lock()
        self._brought = False
        self._failure: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._deadline = 0  # The number of the future's deadline, for forget().
        # In C++ the reducer of DistributedDataParallel takes any value of a future as tensors. So
        # it always gets the outputs, and backward raises the failure when it ends.
        self._fails_later = False
        # How often C++ still waits. A functional collective of many tensors waits once for each.
        self._waits_left = 1
        self._range: Range | None = None

    # ----- Implemented by subclasses -----

    def _is_over(self) -> bool:
        raise NotImplementedError

    def _go_on(self, end: float) -> bool:
        """Waits until it is over. Returns False if time.monotonic() passes `end` before."""
        raise NotImplementedError

    def _look(self) -> bool:
        """Carries the call on as far as possible without waiting. Returns whether it is over."""
        raise NotImplementedError

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Has `call` made once this call is over, on the threads that all calls share."""
        raise NotImplementedError

    def _bring(self) -> BaseException | None:
        """Brings the results to the outputs that they could not be written into directly. Returns
        the call's error, or None. Called once, when the call is over and somebody wants the
        results.
        """
        raise NotImplementedError

    def _who_is_late(self) -> str:
        raise NotImplementedError

    def show(self, range_: Range) -> None:
        """Makes the range end when the caller has waited for the call, which it does at once."""
        self._range = range_

    # ----- Called by programs and by torch -----

    def _take(self) -> BaseException | None:
        """Finishes the call, which is over. Returns its error, or None."""
        with self._lock:
            if not self._brought:
                self._brought = True
                try:
                    self._failure = self._bring()
                except Exception as failure:
                    self._failure = failure
                if self._range is not None:
                    self._range.end()
            return self._failure

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns when the results are in the outputs. Raises what the call failed with.

        Raises Timeout after `timeout`; without one, after the group's or the call's time limit. The
        call may be waited for again then.
        """
        if not self._is_over():
            given_s = timeout.total_seconds()
            timeout_s = given_s if given_s > 0 else self._timeout_s
            begin = time.monotonic()
            if not self._go_on(begin + min(timeout_s / 2, TELL_S)):
                with self._telling():
                    if not self._go_on(begin + min(timeout_s, 1e8)):
                        raise Timeout(self._late_text(timeout_s))
        self._waits_left -= 1
        if self._waits_left <= 0:
            self._group.kept.let_go(self)
        failure = self._take()
        if failure is not None:
            raise failure
        return True

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Tells other ranks that this one waits here. After a timeout it stays told until this rank
        makes another call: others reach their time limit at about the same time.
        """
        whereabouts = self._group.whereabouts
        whereabouts.tell(self._where)
        try:
            yield
        except Timeout:
            whereabouts.is_stale = True
            raise
        except BaseException:
            whereabouts.tell_end()
            raise
        whereabouts.tell_end()

    @property
    def _where(self) -> str:
        what = self._what().partition(": ")[2]
        return what if self._site is None else f"{what} ({self._site})"

    def _late_text(self, timeout_s: float) -> str:
        who = self._who_is_late()
        text = f"{self._what()}: timeout after {timeout_s:g} s: {who}"
        # Ranks of the job, as "rank 1 (local rank 1 of node 0, pid 7)".
        late_ranks = {int(rank) for rank in re.findall(r"(?<!local )\brank (\d+)", who)}
        told = self._group.whereabouts.of(late_ranks or self._group.ranks)
        own = self._what().partition(": ")[2]
        others = [
            f"rank {rank} waits in {where}"
            for rank, where in told.items()
            if late_ranks or not where.startswith(own)
        ]
        if not others:
            return text
        here = f", and this call is made at {self._site}" if self._site is not None else ""
        return f"{text}; meanwhile {', '.join(others)}{here}"

    def synchronize(self) -> None:
        """Calls wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether wait() would return, or raise, without waiting."""
        return self._look()

    def is_success(self) -> bool:
        """Whether it is complete and has not failed."""
        return self.is_completed() and self._take() is None

    def exception(self) -> BaseException | None:
        """Returns the error of a call that is complete, or None."""
        return self._take() if self.is_completed() else None

    def result(self) -> Any:
        """Calls wait(), and returns the outputs."""
        self.wait()
        return self._outputs

    def get_future(self) -> torch.futures.Future[Any]:
        """Returns a future of the outputs. A thread that all calls of this process share completes
        it.

        A wait for a future has no time limit. So the call's limit counts from here. After it nobody
        can wait for the call again, and whoever has the future may use its tensors. So all calls of
        the group end then, as after abort().
        """
        with self._lock:
            is_first = self._future is None
            if self._future is None:
                self._future = self._new_future(_gpus_of(self._outputs))
            future = self._future
        self._group.kept.let_go(self)
        if is_first:
            if _is_called_by_engine():
                self._fails_later = True
                # It runs after the reducer's own end, for which the reducer queues a call as well.
                when_it_ends(lambda: when_it_ends(self._raise_failure))
            if self._is_over():
                # Nothing is chained to it yet. The reducer takes its value at once, after wait().
                self._complete()
            else:
                end = time.monotonic() + min(self._timeout_s, 1e8)
                self._deadline = self._group.client.deadlines.call_at(end, self._give_up)
                self.call_when_done(self._complete)
        return future

    def _new_future(self, gpus: list[torch.device]) -> torch.futures.Future[Any]:
        return OwnFuture(gpus)

    def _give_up(self) -> None:
        """Ends all calls of the group, if this one is not over: the future's time has passed."""
        if not self._is_over():
            text = self._late_text(self._timeout_s)
            remedy = "the process group takes no more calls here: destroy it, and make it anew"
            self._group.end_with(Timeout(f"{text}; {remedy}"))

    def _complete(self) -> None:
        assert self._future is not None
        self._group.client.deadlines.forget(self._deadline)
        failure = self._take()
        # Callbacks that are chained to the future may call and wait for collectives.
        if failure is None or self._fails_later:
            self._future.set_result(self._outputs)
        else:
            self._future.set_exception(failure)

    def _raise_failure(self) -> None:
        failure = self._take()
        if failure is not None:
            raise failure

    def boxed(self) -> Any:
        """Returns torch's script object of this work, which keeps no Python object."""
        self._group.kept.add(self)
        return super().boxed()

    def source_rank(self) -> int:
        """The rank in the group that sent what this call received."""
        return self._source

    _source_rank = source_rank


# Begins a call of all the group's ranks, in the given channel. `is_async`: see Channel.submit().
Start = Callable[[CallChannel, bool], Job]


def late(who: str) -> str:
    """Returns a text that says whom a call waits for. `who` comes from Channel.waits_for()."""
    if who:
        return f"it still waits for {who}"
    return "no rank is known to be late; `talweg status` says what each node waits for"


class Work(Pending):
    """A call of all the group's ranks.

    `calls` is what the rank brings to it, or what begins it. `finish` runs once, when the results
    are there and somebody wants them. It brings them to the outputs that they could not be written
    into directly. `is_async` says that perhaps nobody waits soon. `begun` is the job of a call that
    is submitted already.
    """

    def __init__(
        self,
        group: GroupCalls,
        calls: Sequence[Given] | Start,
        what: Callable[[], str],
        outputs: Any,
        finish: Callable[[list[Any]], None],
        timeout_s: float,
        is_async: bool,
        begun: Job | None = None,
    ) -> None:
        super().__init__(group, what, outputs, timeout_s)
        self._finish = finish
        self._channel = channel = group.channel_here() if begun is None else group.channel
        if callable(calls):
            self._site = call_site()
            self._job = calls(channel, is_async)
            return
        self._waits_left = len(calls)
        self._job = begun or job_of(channel, calls, 0)
        if calls:
            site = self._site = call_site()
            for at, call in enumerate(calls, 1):
                call.site, call.more = site, min(len(calls) - at, MORE_MAX)
        if begun is None:
            channel.submit(self._job, is_async)

    def _is_over(self) -> bool:
        return self._job.done

    def _go_on(self, end: float) -> bool:
        return self._channel.finish(self._job, end)

    def _look(self) -> bool:
        return self._channel.look(self._job)

    def call_when_done(self, call: Callable[[], None]) -> None:
        self._channel.call_when_done(self._job, call)

    def _new_future(self, gpus: list[torch.device]) -> torch.futures.Future[Any]:
        return self._group.callbacks.future(gpus)

    def _bring(self) -> BaseException | None:
        if self._job.failure is None:
            self._finish(self._job.results)
        return self._job.failure

    def _who_is_late(self) -> str:
        return late(self._channel.waits_for())
