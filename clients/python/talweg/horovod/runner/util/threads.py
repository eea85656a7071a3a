# SPDX-License-Identifier: Apache-2.0
"""Threads as programs around Horovod start them."""

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
    """Calls target(*args) on a thread of its own, which is returned; `silent`: its errors are lost."""
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
