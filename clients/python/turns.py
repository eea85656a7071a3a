# SPDX-License-Identifier: Apache-2.0
"""Threads that run one at a time, so that a test can try many of their orders, each again.

A module under test gets `Turns.threading` and `Turns.time` in the place of its own (patched()). At
each lock, event and pause() the seed says whose turn it is next. Time passes only where all wait.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

# Threads of a test wait for less, of this time: what waits for longer hangs.
_HANG_S = 10_000.0


class _Stop(BaseException):
    """Ends a thread whose test is over."""


class _Thread:
    def __init__(self, name: str, is_needed: bool) -> None:
        self.name = name
        self.is_needed = is_needed
        self.turn = threading.Semaphore(0)
        self.is_over = False
        self.haste = 0.0
        self.may_go: Callable[[], bool] | None = None  # What it waits for; None: its turn alone.
        self.until: float | None = None
        self.thread: threading.Thread | None = None


class Turns:
    """Some threads, and a clock."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._patience = self.random.choice((0, 5, 20, 60))
        self.now = 0.0
        self.threading = SimpleNamespace(
            Lock=lambda: _Lock(self, is_recursive=False),
            RLock=lambda: _Lock(self, is_recursive=True),
            Event=lambda: _Event(self),
            Condition=lambda: _Condition(self),
            Thread=lambda target, name, daemon: _Started(self, target, name),
            Timer=lambda after_s, call: _Timer(self, after_s, call),
        )
        self.time = SimpleNamespace(monotonic=lambda: self.now)
        self._threads: list[_Thread] = []
        self._running: _Thread | None = None
        self._is_back = threading.Semaphore(0)
        self._stops = False
        self._failures: list[str] = []

    @contextlib.contextmanager
    def patched(self, *modules: ModuleType) -> Iterator[None]:
        """These modules take turns. Ends all threads in the end."""
        with contextlib.ExitStack() as stack:
            for module in modules:
                for name in {"threading", "time"} & vars(module).keys():
                    stack.enter_context(mock.patch.object(module, name, getattr(self, name)))
            try:
                yield
            finally:
                self._stop()

    def start(self, name: str, call: Callable[[], Any], is_needed: bool = True) -> None:
        """run() returns when all needed ones are over."""
        thread = _Thread(name, is_needed)
        thread.haste = self.random.random()

        def run() -> None:
            thread.turn.acquire()
            try:
                if not self._stops:
                    call()
            except _Stop:
                pass
            except BaseException:
                self._failures.append(f"{name}: {traceback.format_exc()}")
            thread.is_over = True
            self._is_back.release()

        thread.thread = threading.Thread(target=run, name=name, daemon=True)
        thread.thread.start()
        self._threads.append(thread)

    def run(self) -> None:
        """AssertionError if a thread raises, or if they wait for each other."""
        while any(each.is_needed and not each.is_over for each in self._threads):
            ready = [each for each in self._threads if self._is_ready(each)]
            if ready:
                self._give_turn(self._next_of(ready))
            else:
                ends = [each.until for each in self._threads if each.until is not None]
                assert ends and min(ends) < _HANG_S, f"all wait:\n{self._who_waits()}"
                self.now = max(self.now, min(ends))
            self._threads = [each for each in self._threads if not each.is_over]
            assert not self._failures, "\n".join([*self._failures, self._who_waits()])

    def pause(self) -> None:
        """Others may have a turn before this thread goes on."""
        self.wait(lambda: True)

    def wait(self, may_go: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Returns when `may_go`. False: the time is over."""
        thread = self._running
        if thread is None:  # The test's own thread, before and after all others.
            assert may_go()
            return True
        if self._stops:
            if may_go():
                return True
            raise _Stop
        thread.may_go = may_go
        thread.until = None if timeout_s is None else self.now + timeout_s
        self._is_back.release()
        thread.turn.acquire()
        thread.may_go = thread.until = None
        if may_go():
            return True
        if self._stops:
            raise _Stop
        return False

    def own(self) -> object:
        """Stands for the thread that asks."""
        return self._running

    def _is_ready(self, thread: _Thread) -> bool:
        is_late = thread.until is not None and thread.until <= self.now
        return thread.may_go is None or is_late or thread.may_go()

    def _next_of(self, ready: list[_Thread]) -> _Thread:
        """One of them by chance; with a _patience the one in the most haste, which ends by chance.

        So some threads stand still while others do much.
        """
        if self._patience == 0:
            return self.random.choice(ready)
        chosen = max(ready, key=lambda each: each.haste)
        if self.random.randrange(self._patience) == 0:
            chosen.haste = self.random.random()
        return chosen

    def _give_turn(self, thread: _Thread) -> None:
        self._running = thread
        thread.turn.release()
        self._is_back.acquire()
        self._running = None

    def _who_waits(self) -> str:
        frames = sys._current_frames()
        told = []
        for each in self._threads:
            frame = frames.get(each.thread.ident or 0) if each.thread is not None else None
            if each.is_needed and frame is not None and not each.is_over:
                told.append(f"{each.name}:\n{''.join(traceback.format_stack(frame)[:-2])}")
        return "\n".join(told)

    def _stop(self) -> None:
        self._stops = True
        while self._threads:
            each = self._threads.pop()
            while not each.is_over:
                self._give_turn(each)


class _Lock:
    def __init__(self, turns: Turns, is_recursive: bool) -> None:
        self._turns = turns
        self._is_recursive = is_recursive
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        own = self._turns.own()
        if self._is_recursive and self._depth > 0 and self._owner is own:
            self._depth += 1
            return True
        self._turns.pause()
        if not blocking:
            timeout = 0.0
        if not self._turns.wait(lambda: self._depth == 0, timeout if timeout >= 0 else None):
            return False
        self._owner, self._depth = own, 1
        return True

    def release(self) -> None:
        assert self._depth > 0
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._turns.pause()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class _Event:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._turns.pause()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._turns.wait(lambda: self._is_set, timeout)


class _Timer:
    def __init__(self, turns: Turns, after_s: float, call: Callable[[], None]) -> None:
        self._turns, self._after_s, self._call = turns, after_s, call
        self.daemon = True

    def start(self) -> None:
        def run() -> None:
            self._turns.wait(lambda: False, self._after_s)
            self._call()

        self._turns.start("a timer", run, is_needed=False)


class _Condition(_Lock):
    """A condition with a lock of its own. notify_all() only lets others have a turn."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(turns, is_recursive=True)

    def wait_for(self, is_true: Callable[[], bool], timeout: float | None = None) -> bool:
        assert self._depth == 1 and self._owner is self._turns.own()
        if is_true():
            return True
        self.release()
        self._turns.wait(lambda: self._depth == 0 and is_true(), timeout)
        self.acquire()
        return is_true()

    def notify_all(self) -> None:
        pass


class _Started:
    def __init__(self, turns: Turns, target: Callable[[], Any], name: str) -> None:
        self._turns, self._target, self._name = turns, target, name

    def start(self) -> None:
        self._turns.start(self._name, self._target, is_needed=False)
