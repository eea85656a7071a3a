# SPDX-License-Identifier: Apache-2.0
"""Threads for calls in the background, and for calls that wait for an event."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def _require_tuple(args: Any) -> None:
    if not isinstance(args, tuple):
        raise ValueError(
            f"args must be a tuple, not {type(args)}, for a single argument use (arg,)"
        )


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
    _require_tuple(args)

    def call() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: Any,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: Any = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls func(*args) on a new thread when `event` is set, unless `stop` is set before.

    The thread looks at `stop` every `check_stop_interval_s` seconds. A thread that is no daemon
    needs `stop`.
    """
    if event is None:
        raise ValueError("Event must not be None")
    if stop is None and not daemon:
        raise ValueError("Stop event must be given for non-daemon event thread")
    _require_tuple(args)

    def wait() -> None:
        if stop is None:
            event.wait()
        else:
            while not event.wait(check_stop_interval_s):
                if stop.is_set():
                    return
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Calls fn(*args) for each of `args_list`, on so many threads at most.

    Returns the results by their place in the list, or None at once if it does not block. Raises
    RuntimeError if a call has raised.
    """
    left = queue.SimpleQueue[int]()
    for place in range(len(args_list)):
        left.put(place)
    results: dict[int, Any] = {}

    def work() -> None:
        while True:
            try:
                place = left.get_nowait()
            except queue.Empty:
                return
            results[place] = fn(*args_list[place])

    count = min(max_concurrent_executions, len(args_list))
    threads = [in_thread(work, daemon=not block_until_all_done) for _ in range(count)]
    if not block_until_all_done:
        return None
    for thread in threads:
        thread.join()
    if len(results) < len(args_list):
        name = getattr(fn, "__name__", repr(fn))
        raise RuntimeError(f"{name} has raised an error for some of the arguments (above)")
    return dict(sorted(results.items()))
