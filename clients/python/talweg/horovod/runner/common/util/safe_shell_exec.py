# SPDX-License-Identifier: Apache-2.0
"""Runs commands that end with their caller, and passes their output on by lines."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from talweg.horovod.runner.util.threads import in_thread, on_event

__all__ = ["GRACEFUL_TERMINATION_TIME_S", "execute", "line_prefix", "prefix_connection"]

# How long a command that is asked to end may take, before it is killed.
GRACEFUL_TERMINATION_TIME_S = 5

_PART_BYTES = 1 << 16
_MIDDLEMAN = str(Path(__file__).with_name("_middleman.py"))
# How often an event is asked for.
_TURN_S = 0.1


def line_prefix(index: object, stream: str, has_time: bool) -> str:
    """Returns what a line of a rank's output begins with, as in "[0]<stdout>:"."""
    moment = time.asctime(time.localtime(time.time())) if has_time else ""
    return f"{moment}[{index}]<{stream}>:"


def prefix_connection(
    src_connection: Any,
    dst_stream: TextIO,
    prefix: str | None,
    index: object,
    prefix_output_with_timestamp: bool,
) -> None:
    """Writes what comes from a connection to a text stream, until it closes, and closes it.

    Each line begins with `index` and `prefix`, if both are given. A carriage return ends a line,
    too, so that progress bars appear at once.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    has_prefix = index is not None and prefix is not None
    begun, after_return = "", False

    def write(line: str) -> None:
        if has_prefix and not (after_return and line == "\n"):
            line = line_prefix(index, str(prefix), prefix_output_with_timestamp) + line
        dst_stream.write(line)
        dst_stream.flush()

    while True:
        part = os.read(src_connection.fileno(), _PART_BYTES)
        *lines, begun = re.split("(?<=[\r\n])", begun + decoder.decode(part, final=not part))
        for line in lines:
            write(line)
            after_return = line.endswith("\r")
        if not part:
            break
    if begun:
        write(begun)
    src_connection.close()


def execute(
    command: str,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    index: object = None,
    events: Iterable[Any] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Runs a line of shell, and returns its exit status: 128 plus the signal if one ended it.

    Its output goes to the text streams `stdout` and `stderr`, by default this program's. The
    command ends when one of `events` is set, or this process ends, however that happens: by
    SIGTERM, and by SIGKILL after GRACEFUL_TERMINATION_TIME_S.
    """
    grace_s = str(GRACEFUL_TERMINATION_TIME_S)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", _MIDDLEMAN, grace_s, command],
        env=None if env is None else dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches it when this process closes its stdin.
    )

    def end() -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()

    stop = threading.Event()
    shown = [
        in_thread(prefix_connection, (source, target, name, index, prefix_output_with_timestamp))
        for source, target, name in (
            (process.stdout, sys.stdout if stdout is None else stdout, "stdout"),
            (process.stderr, sys.stderr if stderr is None else stderr, "stderr"),
        )
    ]
    for event in events or ():
        on_event(event, end, stop=stop, check_stop_interval_s=_TURN_S)
    try:
        process.wait()
    finally:
        stop.set()
        end()
        process.wait()
        for thread in shown:
            thread.join()
    return process.returncode
