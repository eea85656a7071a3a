# SPDX-License-Identifier: Apache-2.0
"""Holds Ctrl-C back while a call does what must not end half way.

Python raises KeyboardInterrupt between any two steps of the main thread. A push whose round nobody
has noted then blocks its tensor. So SIGINT is noted where `held` is entered, and its handler is
called when `held` is left, or at a deliver(). Whoever waits there calls deliver() several times a
second.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import threading
from threading import get_ident
from types import FrameType
from typing import Any

# The functions of `signal` turn numbers into enums and back, which takes 12 times as long.
_SIGINT = int(_signal.SIGINT)
_main_thread = threading.main_thread().ident
_depth = 0  # How often `held` is entered, if SIGINT is held back.
_handler: Any = None  # The program's, while SIGINT is held back.
_noted: list[FrameType | None] = []


def _after_fork() -> None:
    global _main_thread
    _main_thread = get_ident()


os.register_at_fork(after_in_child=_after_fork)


def _note(_: int, frame: FrameType | None) -> None:
    _noted.append(frame)


class _Held:
    """A context, which may be entered again inside. Only the main thread is interrupted, so in
    other threads it does nothing. It costs 1 us.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        global _depth, _handler
        if get_ident() != _main_thread:
            return
        if _depth == 0:
            handler = _signal.getsignal(_SIGINT)
            if not callable(handler):  # SIGINT ends the process, or does nothing.
                return
            if handler is not _note:
                _handler = handler
                _signal.signal(_SIGINT, _note)
        _depth += 1

    def __exit__(self, *_: object) -> None:
        global _depth
        if _depth == 0 or get_ident() != _main_thread:
            return
        _depth -= 1
        if _depth == 0:
            if _signal.getsignal(_SIGINT) is _note:
                _signal.signal(_SIGINT, _handler)
            if _noted:
                deliver()


held = _Held()


def deliver() -> None:
    """Calls the program's handler, which may raise, if SIGINT has come while it was held back."""
    if _noted and get_ident() == _main_thread:
        frame = _noted[-1]
        _noted.clear()
        _handler(_SIGINT, frame)
