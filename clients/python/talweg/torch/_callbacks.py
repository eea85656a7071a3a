# SPDX-License-Identifier: Apache-2.0
"""Callbacks of futures, and the calls of torch.distributed that are made in them.

A group's calls are matched by their order. But torch runs what is chained to a future on the
thread that completes it, or at once where it is complete: at each rank in another order. So this
module keeps one order for all ranks:

- The callbacks of a group's futures stand in a line. They run one after another, in the order in
  which the program has chained them.
- Calls in callbacks go through a channel of their own. So they belong together whatever the
  program calls meanwhile.
- A callback that is chained in a callback stands in another line, one level deeper, with another
  channel. It runs at the same time as the outer callback, which may wait for it.

A callback may wait for what it has called or chained, and for callbacks chained before it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from talweg.errors import Forked

_Call = Callable[[], None]

# Deeper callbacks share the last line: a program that chains for ever gets no more channels.
_DEPTH_MAX = 16


class _Link(NamedTuple):
    """A callback, and the future that it waits for."""

    future: Future
    run: _Call


class _Line:
    """Callbacks that run one after another: those of one depth of a group."""

    def __init__(self, of: Callbacks, depth: int) -> None:
        self.of = of
        self.depth = depth
        self._lock = threading.Lock()
        self._links: deque[_Link] = deque()
        self._is_run = False

    def add(self, link: _Link) -> None:
        """Adds a callback. Runs the ready ones now, as torch does, unless another thread does."""
        with self._lock:
            self._links.append(link)
            runs_now = not self._is_run and self._is_first_ready()
            self._is_run = self._is_run or runs_now
        if runs_now:
            self._run()
        link.future.tell(self._go_on)

    def _is_first_ready(self) -> bool:
        return bool(self._links) and self._links[0].future.done()

    def _go_on(self) -> None:
        """Called when a future is complete. Has the line run, if its first callback is ready."""
        with self._lock:
            if self._is_run or not self._is_first_ready():
                return
            self._is_run = True
        self.of.call_elsewhere(self._run)

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._is_first_ready():
                        self._is_run = False
                        return
                    link = self._links.popleft()
                with _standing_in(self):
                    link.future.let_stream_wait()
                    link.run()
        except BaseException:  # No future takes this error. The other callbacks run all the same.
            with self._lock:
                self._is_run = False
            self.of.call_elsewhere(self._go_on)
            raise


class _Here(threading.local):
    line: _Line | None = None  # The line whose callback this thread runs.


_here = _Here()


@contextlib.contextmanager
def _standing_in(line: _Line | None) -> Iterator[None]:
    """A context in which this thread runs a callback of `line`. None: it runs none.

    A callback's future is completed outside of its line. Torch runs what is chained to futures of
    its own, as that of collect_all, when this completes them, or on the thread that chains it: its
    calls have the same channel wherever it runs.
    """
    before, _here.line = _here.line, line
    try:
        yield
    finally:
        _here.line = before


def runs_here() -> bool:
    """Whether this thread runs a callback."""
    return _here.line is not None


class Callbacks:
    """The callbacks of one group's futures. `call_elsewhere` makes a call on another thread."""

    def __init__(self, call_elsewhere: Callable[[_Call], None]) -> None:
        self.call_elsewhere = call_elsewhere
        self._lines: dict[int, _Line] = {}

    def channel_name(self) -> str:
        """Returns the suffix of the channel for calls that this thread makes; empty for the main
        one.
        """
        line = _here.line
        if line is None:
            return ""
        return f".{'then' if line.of is self else 'other'}{line.depth}"

    def future(self, devices: list[torch.device]) -> Future:
        """Returns a future whose callbacks stand in the group's lines, for values on `devices`."""
        return Future(self, devices)

    def chain(self, future: Future, run: _Call) -> None:
        """Has `run` called when the future is complete and its turn has come."""
        depth = min(_here.line.depth + 1 if _here.line is not None else 1, _DEPTH_MAX)
        self._lines.setdefault(depth, _Line(self, depth)).add(_Link(future, run))


class _Raised(NamedTuple):
    """The value of a future whose callback has raised. torch shows it where it wants a tensor.

    The future has the failure, whose frames may hold the future: no collector of Python's finds a
    circle through a value, which torch has in C++.
    """

    text: str
    future: weakref.ref[Future]

    def __str__(self) -> str:
        return f"what a callback has raised ({self.text})"


def _raise(value: _Raised) -> None:
    future = value.future()
    if future is None or future.failure is None:
        # Only torch's own code has the future, whose errors are RuntimeErrors, too.
        raise RuntimeError(value.text)
    raise future.failure


class OwnFuture(torch.futures.Future[Any]):
    """A future of torch that only the process which has made it may wait for and chain to.

    A fork has none of the threads that complete futures, and may have a lock that one of them held.
    """

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__(devices=list(devices))
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Raises Forked in a fork of the process that has made the future."""
        if os.getpid() != self._pid:
            raise Forked(
                f"this future belongs to process {self._pid}, of which this process "
                f"({os.getpid()}) is a fork: no thread completes it or runs callbacks here. Wait "
                "for it before the fork, and give the fork its value"
            )

    def wait(self) -> Any:
        """Returns the value when it is there, or raises what the call failed with."""
        if not self.done():
            self.check_process()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """Returns a future of what `callback` returns, or raises, when it is given this future."""
        self.check_process()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Has `callback` called with this future. torch logs what it raises."""
        self.check_process()
        super().add_done_callback(callback)


class Future(OwnFuture):
    """A future of torch whose callbacks run in the order in which they were chained."""

    def __init__(self, callbacks: Callbacks, devices: list[torch.device]) -> None:
        super().__init__(devices)
        self._callbacks = callbacks
        self._devices = devices
        self.failure: BaseException | None = None

    def tell(self, call: _Call) -> None:
        """Has the thread that completes the future make `call`, or makes it now. No call blocks."""
        super().add_done_callback(lambda _: call())

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """Returns a future of what `callback` returns, or raises, when it is given this future."""
        self.check_process()
        result = Future(self._callbacks, self._devices)

        def run() -> None:
            try:
                value = callback(self)
            except BaseException as failure:
                # If the error is an exit, the thread that waits for the result exits.
                with _standing_in(None):
                    result._fail(failure)
                if isinstance(failure, KeyboardInterrupt):
                    raise
            else:
                with _standing_in(None):
                    result.set_result(value)

        self._callbacks.chain(self, run)
        return result

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Has `callback` called with this future. torch logs what it raises."""
        self.check_process()

        def run() -> None:
            turn: torch.futures.Future[None] = torch.futures.Future()
            turn.add_done_callback(lambda _: callback(self))
            turn.set_result(None)

        self._callbacks.chain(self, run)

    def _fail(self, failure: BaseException) -> None:
        self.failure = failure
        self._set_unwrap_func(_raise)
        self.set_result(_Raised(f"{type(failure).__name__}: {failure}", weakref.ref(self)))

    def let_stream_wait(self) -> None:
        """Has this thread's streams wait for what computes the value."""
        if self._devices:
            with contextlib.suppress(Exception):  # The callback finds it, if it asks.
                self.wait()
