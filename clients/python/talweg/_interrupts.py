# SPDX-License-Identifier: Apache-2.0
"""Holds signals back while a call does what must not end half way.

Python calls a signal's handler between any two steps of the main thread, and the handler may raise:
KeyboardInterrupt on Ctrl-C, the error of a time limit that the program keeps by SIGALRM, SystemExit
on SIGTERM. A push whose round nobody has noted then blocks its tensor. So a signal is noted where
`held` is entered, and its handler is called when `held` is left, or at a deliver(). Whoever waits
there calls deliver() several times a second.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import threading
from threading import get_ident
from types import FrameType
from typing import Any

# The functions of `signal` turn numbers into enums and back, which takes 12 times as long.
_NUMBERS = tuple(
    int(getattr(_signal, name)) for name in ("SIGINT", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2")
)
_main_thread = threading.main_thread().ident
_depth = 0  # How often `held` is entered, if signals are held back.
_handlers: dict[int, Any] = {}  # The program's, of the signals that are or were held back.
_noted: dict[int, FrameType | None] = {}


class _Raised(BaseException):
    """The Exception that a handler has raised where `held` is entered. As a BaseException it is
    nobody's error of a call. It ends where `held` is left.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _after_fork() -> None:
    global _main_thread
    _main_thread = get_ident()


os.register_at_fork(after_in_child=_after_fork)


def _note(number: int, frame: FrameType | None) -> None:
    _noted[number] = frame


class _Held:
    """A context, which may be entered again inside. Only the main thread is interrupted, so in
    other threads it does nothing. It costs 2 us.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        global _depth
        if get_ident() != _main_thread:
            return
        if _depth == 0:
            for number in _NUMBERS:
                handler = _signal.getsignal(number)
                # Without a handler in Python the signal ends the process, or does nothing.
                if callable(handler) and handler is not _note:
                    _handlers[number] = handler
                    _signal.signal(number, _note)
        _depth += 1

    def __exit__(self, _: object, raised: BaseException | None, __: object) -> None:
        global _depth
        if _depth == 0 or get_ident() != _main_thread:
            return
        _depth -= 1
        if _depth == 0:
            for number, handler in _handlers.items():
                if _signal.getsignal(number) is _note:
                    _signal.signal(number, handler)
            if _noted:
                deliver()
            if isinstance(raised, _Raised):
                error, context = raised.error, raised.error.__context__
                del raised
                try:
                    raise error from error.__cause__
                finally:
                    # In a cycle the frames would keep what they hold until the collector runs.
                    error.__context__ = context
                    del error, context


held = _Held()


def deliver() -> None:
    """Calls the program's handlers, which may raise, of signals that have come while they were held
    back.
    """
    while _noted and get_ident() == _main_thread:
        number, frame = _noted.popitem()
        try:
            _handlers[number](number, frame)
        except Exception as error:
            if _depth == 0:
                raise
            raise _Raised(error) from None
