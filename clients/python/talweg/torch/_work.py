# SPDX-License-Identifier: Apache-2.0
"""What a call of torch.distributed returns, and waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from talweg._collectives import Channel, Given, Job
from talweg.errors import Timeout


class _Job(Job):
    """A Job that says when it is done."""

    def __init__(
        self, channel: Channel, calls: Sequence[Given], on_done: Callable[[], None]
    ) -> None:
        super().__init__(channel, calls, 0)
        self._on_done = on_done

    def go_on(self) -> None:
        super().go_on()
        if self.done.is_set():
            self._on_done()


class Work(dist.Work):
    """One call. Any thread may wait for it, as often as it likes.

    `finish` runs once, when the results are there and somebody wants them: it brings them to the
    outputs that they could not be written into directly.
    """

    def __init__(
        self,
        channel: Channel,
        calls: Sequence[Given],
        what: str,
        outputs: Any,
        finish: Callable[[list[Any]], None],
        timeout_s: float,
        source_rank: int = -1,
    ) -> None:
        super().__init__()
        self._what = what
        self._outputs = outputs
        self._finish = finish
        self._timeout_s = timeout_s
        self._from = source_rank
        self._lock = threading.Lock()
        self._finished = False
        self._failure: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._unset: torch.futures.Future[Any] | None = None  # It, until it has a result.
        self._job = _Job(channel, calls, self._on_done)
        channel.submit(self._job)

    def _take(self) -> BaseException | None:
        """Finishes it, once it is done; returns what it failed with."""
        with self._lock:
            if not self._finished:
                self._finished = True
                self._failure = self._job.failure
                if self._failure is None:
                    try:
                        self._finish(self._job.results)
                    except Exception as failure:
                        self._failure = failure
            return self._failure

    def _on_done(self) -> None:
        with self._lock:
            wanted = self._unset is not None
        if wanted:
            # What is chained to a future may call and wait for collectives, which this thread runs.
            threading.Thread(target=self._set_future, name="talweg-future", daemon=True).start()

    def _set_future(self) -> None:
        failure = self._take()
        with self._lock:
            future, self._unset = self._unset, None
        if future is None:
            return
        if failure is None:
            future.set_result(self._outputs)
        else:
            future.set_exception(failure)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns when the results are in the outputs. Raises what the call failed with.

        Timeout after `timeout`, without one after the group's or the call's; it may be waited for
        again.
        """
        given_s = timeout.total_seconds()
        timeout_s = given_s if given_s > 0 else self._timeout_s
        if not self._job.done.wait(min(timeout_s, 1e8)):
            raise Timeout(
                f"{self._what}: not complete after {timeout_s:g} s: another rank has not called it "
                "yet, or never will; `talweg status` says who is waited for"
            )
        failure = self._take()
        if failure is not None:
            raise failure
        return True

    def synchronize(self) -> None:
        """wait()"""
        self.wait()

    def is_completed(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        return self._job.done.is_set()

    def is_success(self) -> bool:
        """Whether it is complete and has not failed."""
        return self.is_completed() and self._take() is None

    def exception(self) -> BaseException | None:
        """What it failed with."""
        return self._take() if self.is_completed() else None

    def result(self) -> Any:
        """The outputs, after wait()."""
        self.wait()
        return self._outputs

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the outputs; another thread completes it."""
        with self._lock:
            if self._future is None:
                self._future = self._unset = torch.futures.Future()
            future = self._future
        if self._job.done.is_set():
            self._set_future()
        return future

    def source_rank(self) -> int:
        """Who sent what this call received, as a number in the group."""
        return self._from

    _source_rank = source_rank
