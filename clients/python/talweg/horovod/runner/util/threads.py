# SPDX-License-Identifier: Apache-2.0
"""Starts threads for programs that use Horovod's helper."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["in_thread"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls target(*args) on a new thread, and returns the thread.

    `silent` drops its errors. Raises ValueError if `args` is no tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(
            f"args must be a tuple, not {type(args)}, for a single argument use (arg,)"
        )

    def call() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread
