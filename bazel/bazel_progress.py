#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs Bazel and shows its progress: one line that updates on a terminal, else a line now and then.

    bazel/bazel_progress.py [--shutdown] build //services/... //clients/...

It keeps Bazel's output back and shows it only on failure. With --shutdown, Bazel's server ends with
this program, also when it is interrupted. This program uses only the standard library, because it
runs before .venv exists.
"""

from __future__ import annotations

import contextlib
import ctypes
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
_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>


class Interrupted(Exception):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Signals:
    """The signals that have come, and whether the program can obey them now."""

    depth = 0  # How many held_back() blocks are open.
    waiting: int | None = None


def _ignore_signals() -> None:
    # Processes that this program starts would inherit SIG_IGN, so it sets a function.
    for each in _SIGNALS:
        signal.signal(each, lambda *_: None)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted on the first SIGINT, SIGTERM or SIGHUP and ignores later ones.

    They stay ignored after the block, while the program cleans up.
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
    """Puts Interrupted off to the end of the block, so that it can note what it started."""
    _Signals.depth += 1
    try:
        yield
    finally:
        _Signals.depth -= 1
    if not _Signals.depth and _Signals.waiting is not None:
        number, _Signals.waiting = _Signals.waiting, None
        raise Interrupted(number)


class ProgressLine:
    """One line on a terminal, which is rewritten; elsewhere a line each `_PLAIN_INTERVAL_S`."""

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
    """Returns Bazel's servers for this tree, also those that are starting, by their arguments."""
    wanted = f"--workspace_directory={ROOT}".encode()
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", entry, "cmdline").read_bytes().split(b"\0"):
                    pids.append(int(entry))
    return pids


def _adopt_orphans() -> None:
    """Makes this process the parent of all descendants whose own parent has ended.

    Bazel's client starts its server by a process that forks and ends. A list of all processes that
    is taken in between may miss the server. The server's parent cannot miss it.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _orphans() -> list[int]:
    """Returns adopted processes that nobody has waited for: children in another session."""
    session = os.getsid(0)
    pids = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            # "pid (name) state parent group session ...", and a name may hold spaces and brackets.
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and int(fields[3]) != session:
                pids.append(int(entry))
    return pids


def _end_what_is_left() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: set[int] = set()
        end = time.monotonic() + _END_S
        while left := {*_server_pids(), *_orphans()}:
            for pid in left - told:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            told |= left
            for pid in left:
                # When a child ends, its children become this process's. So the next turn finds
                # them.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > end:
                break
            time.sleep(0.02)


def shut_down() -> None:
    """Ends Bazel's server for this tree, if one runs, and all else that run_bazel() has left.

    It also ends processes that were started with `start_new_session`. So call it when none runs.
    """
    with held_back():
        if not _server_pids() and not _orphans():
            return
        subprocess.run(
            ["bazel", "shutdown"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # A second Ctrl-C must not interrupt the cleanup.
            check=False,
        )
        # `bazel shutdown` does not know a server that was starting when its client was interrupted.
        _end_what_is_left()


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
    on_progress: Callable[[], None] | None = None,
) -> tuple[int, list[str]]:
    """Runs one Bazel command. Returns its exit status, and the last lines of its output.

    It calls `on_line` with each line that tells no progress, and `on_progress` now and then. What
    they raise cancels the command.
    """
    command = [
        "bazel",
        arguments[0],
        "--curses=no",
        "--color=no",
        "--show_progress_rate_limit=0.3",
        "--noshow_loading_progress",
        *arguments[1:],
    ]
    _adopt_orphans()
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
                start_new_session=True,  # Signals reach it only once, through _cancel().
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
                if on_progress:
                    on_progress()
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
