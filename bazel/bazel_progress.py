#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs Bazel and shows how far it is: a line that updates on a terminal, else one now and then.

    bazel/bazel_progress.py [--shutdown] build //services/... //clients/...

What Bazel says is kept back and shown only when it fails. With --shutdown, Bazel's server ends with
this program, also when it is interrupted. Standard library only: runs before .venv is there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent

# "[12 / 40] 3 / 9 tests, 1 failed; Compiling libs/wire/frames.cc; 2s ... (2 actions running)"
_PROGRESS = re.compile(
    r"^\[(?P<done>[\d,]+) / (?P<total>[\d,]+)\] "
    r"(?:(?P<tests_done>\d+) / (?P<tests_total>\d+) tests?(?:, (?P<tests_failed>\d+) failed)?;? ?)?"
    r"(?P<current>.*)$"
)
_NOISE = re.compile(
    r"^(FAIL:|INFO|Loading|Analyzing|DEBUG|WARNING|Starting local Bazel|\$TEST_TMPDIR)"
)
_PLAIN_INTERVAL_S = 15.0
_CANCEL_S = 30.0
_END_S = 10.0
_BAR_CELLS = 24


class Interrupted(Exception):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Signals:
    """What has been asked for by signals, and whether that can be heeded now."""

    depth = 0  # Of held_back() blocks.
    waiting: int | None = None


def _ignore_signals() -> None:
    # Not SIG_IGN, which programs that are started would inherit.
    for each in _SIGNALS:
        signal.signal(each, lambda *_: None)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted on the first SIGINT, SIGTERM or SIGHUP and ignores later ones.

    They stay ignored after the block, where things are ended and taken away.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        _ignore_signals()
        if _Signals.depth:
            _Signals.waiting = number
            return
        raise Interrupted(number)

    for each in _SIGNALS:
        signal.signal(each, on_signal)
    try:
        yield
    finally:
        _ignore_signals()


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Puts Interrupted off to the end of the block: what starts something can note what it started."""
    _Signals.depth += 1
    try:
        yield
    finally:
        _Signals.depth -= 1
    if not _Signals.depth and _Signals.waiting is not None:
        number, _Signals.waiting = _Signals.waiting, None
        raise Interrupted(number)


class ProgressLine:
    """One line on a terminal, rewritten; elsewhere a line every `_PLAIN_INTERVAL_S`."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._terminal = sys.stdout.isatty()
        self._started = time.monotonic()
        self._shown = self._started

    def show(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        elapsed = int(now - self._started)
        counts = f"{done}/{total}" if total else ""
        if self._terminal:
            filled = _BAR_CELLS * done // total if total else 0
            bar = "#" * filled + "-" * (_BAR_CELLS - filled)
            line = f"{self._title} [{bar}] {counts} {elapsed}s {text}"
            columns = shutil.get_terminal_size().columns
            sys.stdout.write("\r\033[K" + line[: columns - 1])
            sys.stdout.flush()
        elif now - self._shown >= _PLAIN_INTERVAL_S:
            self._shown = now
            print(f"{self._title}: {counts}, {elapsed} s; {text}", flush=True)

    def clear(self) -> None:
        if self._terminal:
            sys.stdout.write("\r\033[K")
            sys.stdout.flush()


def _server_pids() -> list[int]:
    """Bazel's servers for this tree, those that only start included, by what they were told."""
    wanted = f"--workspace_directory={ROOT}".encode()
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", entry, "cmdline").read_bytes().split(b"\0"):
                    pids.append(int(entry))
    return pids


def shut_down() -> None:
    """Ends Bazel's server for this tree, if one runs."""
    _ignore_signals()
    if not _server_pids():
        return
    subprocess.run(
        ["bazel", "shutdown"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # A second Ctrl-C must not stop the cleaning up.
        check=False,
    )
    # A server whose client was interrupted before it had started is not known to `bazel shutdown`.
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _server_pids():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        end = time.monotonic() + _END_S
        while _server_pids() and time.monotonic() < end:
            time.sleep(0.02)


def _cancel(client: subprocess.Popen[str]) -> None:
    """Cancels a running Bazel command as Ctrl-C would, which ends its tests too."""
    client.send_signal(signal.SIGINT)
    try:
        client.wait(_CANCEL_S)
    except subprocess.TimeoutExpired:
        client.kill()
        client.wait()


def run_bazel(
    arguments: list[str],
    title: str,
    on_line: Callable[[str], None] | None = None,
) -> tuple[int, list[str]]:
    """Runs one Bazel command; returns its exit status and the last lines that say something."""
    command = [
        "bazel",
        arguments[0],
        "--curses=no",
        "--color=no",
        "--show_progress_rate_limit=0.3",
        "--noshow_loading_progress",
        *arguments[1:],
    ]
    progress = ProgressLine(title)
    progress.show(0, 0, "starting Bazel")
    kept: deque[str] = deque(maxlen=400)
    client = None
    try:
        with held_back():
            client = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Signals reach it through _cancel(), once.
            )
        assert client.stderr is not None
        for line in client.stderr:
            line = line.rstrip("\n")
            match = _PROGRESS.match(line)
            if match:
                tests = ""
                if match["tests_total"]:
                    tests = f"tests {match['tests_done']}/{match['tests_total']}"
                    tests += (
                        f", {match['tests_failed']} failed; " if match["tests_failed"] else "; "
                    )
                done, total = (int(match[key].replace(",", "")) for key in ("done", "total"))
                progress.show(done, total, tests + match["current"])
            elif line.strip() and not _NOISE.match(line):
                kept.append(line)
                if on_line:
                    on_line(line)
        return client.wait(), list(kept)
    except BaseException:
        if client is not None:
            _cancel(client)
        raise
    finally:
        if client is not None and client.stderr is not None:
            client.stderr.close()
        progress.clear()


def main() -> int:
    arguments = sys.argv[1:]
    end_server = "--shutdown" in arguments
    arguments = [argument for argument in arguments if argument != "--shutdown"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    started = time.monotonic()
    try:
        with interruptible():
            status, lines = run_bazel(arguments, arguments[0])
    except Interrupted as interruption:
        print(f"{arguments[0]}: ended by {interruption}", file=sys.stderr)
        return 128 + interruption.number
    finally:
        if end_server:
            shut_down()
    if status != 0:
        print("\n".join(lines), file=sys.stderr)
        print(f"bazel {' '.join(arguments)} failed with status {status}", file=sys.stderr)
        return status
    print(f"{arguments[0]}: done in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
