# SPDX-License-Identifier: Apache-2.0
"""Starts one host's ranks for a launcher on another: what horovodrun has ssh run there.

It reads one line of JSON from stdin, a Task. It writes lines of JSON to stdout: {"rank", "stream",
"text"} for lines that ranks write, {"rank", "status"} for their ends, {"rank", "result"} for a file that a
rank has left. When stdin closes, the launcher or the connection to it is gone, and ranks are ended.
A text that ends with a carriage return is a part of a line, as of a progress bar.
A task that waits says {"here"}, and starts its ranks when a line that starts with BEGIN comes. The
rest of that line completes its command. One with a `silence_s` ends them when nothing has come for so
long, not even a BEAT: a host that is cut off silently has a connection that never closes.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import ctypes
import fcntl
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEGIN = b"b"
BEAT = b"\n"
_GRACE_S = 5.0
# What ranks have written and the launcher has not read yet. Above that they wait.
_UNSENT_BYTES_MAX = 1 << 20
# What ends a line, or is between the parts of one: after a carriage return more has come.
_LINES = re.compile(rb"\r?\n|(?<=\r)(?!\n|\Z)")
_PR_SET_PDEATHSIG = 1
# The directory for what the ranks get and leave, and a file in it that is locked while it is used.
_PREFIX = "talweg-ranks-"
_LOCK = "lock"
_libc = ctypes.CDLL(None)


def use_interface(names: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Has what starts with `environment` use the first of these that this host has, if any."""
    own = [name for _, name in socket.if_nameindex()]
    for name in names:
        if name in own:
            environment["TALWEG_INTERFACE"] = name
            return


@dataclass
class Task:
    """`variables` are each rank's own by its rank, on top of `environment`."""

    command: list[str]
    directory: str
    environment: dict[str, str]
    variables: dict[str, dict[str, str]]
    secret: str = ""
    interfaces: list[str] = field(default_factory=list)  # The first that this host has is used.
    files: dict[str, str] = field(default_factory=dict)  # In base64, made in TALWEG_TASK_DIR.
    waits: bool = False
    completed: int | None = None  # The word of `command` that what comes with BEGIN is added to.
    silence_s: float = 0.0  # 0: the launcher may be silent.


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Ranks:
    def __init__(self, task: Task, scratch: Path) -> None:
        self._task = task
        self._scratch = scratch
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._end = 0.0  # When those that are left are killed.
        self._killed = False
        self._may_begin = not task.waits
        self._told = b""  # The part of a line of the launcher's that has come.
        self._heard_s = time.monotonic()
        # What is watched while much is unsent: what ranks write waits in their pipes.
        self._selector_when_full = selectors.DefaultSelector()
        self._unsent: collections.deque[memoryview] = collections.deque()
        self._unsent_bytes = 0
        self._watches_stdout = False
        os.set_blocking(1, False)

    def _say(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        self._unsent.append(memoryview(line))
        self._unsent_bytes += len(line)
        self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                written = os.write(1, self._unsent[0])
                self._unsent_bytes -= written
                self._unsent[0] = self._unsent[0][written:]
                if not self._unsent[0]:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop_unsent()
            self.ask_to_end()
        self._watch_stdout()

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    def _watch_stdout(self) -> None:
        """While something is unsent, a turn also ends when more can be sent."""
        wanted = bool(self._unsent)
        if wanted == self._watches_stdout:
            return
        self._watches_stdout = wanted
        for selector in (self._selector, self._selector_when_full):
            if wanted:
                selector.register(1, selectors.EVENT_WRITE, ("", "stdout", b""))
            else:
                selector.unregister(1)

    def run(self) -> None:
        for selector in (self._selector, self._selector_when_full):
            selector.register(0, selectors.EVENT_READ, ("", "stdin", b""))
        if not self._may_begin:
            self._say({"here": True})
        while not self._may_begin and not self._end:
            self._turn()
        for rank, own in self._task.variables.items():
            if self._end:
                break
            try:
                self._start(rank, own)
            except OSError as error:
                self._say({"rank": rank, "stream": "stderr", "text": f"{error}"})
                self._say({"rank": rank, "status": 127})
                self.ask_to_end()
        while self._running or self._unsent:
            self._turn()
            self._reap()
            if self._end and time.monotonic() > self._end and not self._killed:
                self._killed = True
                self._signal(signal.SIGKILL)

    def _turn(self) -> None:
        is_full = self._unsent_bytes > _UNSENT_BYTES_MAX
        for key, events in (self._selector_when_full if is_full else self._selector).select(0.2):
            if events & selectors.EVENT_READ:
                self._read(key)
        self._send()
        silence_s = self._task.silence_s
        if silence_s and time.monotonic() - self._heard_s > silence_s:
            self._drop_unsent()  # Nobody reads it.
            self.ask_to_end()

    def _start(self, rank: str, own: dict[str, str]) -> None:
        environment = {**self._task.environment, **own}
        environment["TALWEG_TASK_DIR"] = str(self._scratch)
        if self._task.secret:
            environment["TALWEG_SECRET_FILE"] = str(self._scratch / "secret")
        use_interface(self._task.interfaces, environment)
        process = subprocess.Popen(
            self._task.command,
            env=environment,
            cwd=self._task.directory or None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._running[rank] = process
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (rank, name, b""))

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Whether there may be more."""
        rank, name, before = key.data
        try:
            part = os.read(key.fd, 65536)
        except BlockingIOError:
            return False
        if name == "stdin":
            self._heard_s = time.monotonic()
            if not part:
                for selector in (self._selector, self._selector_when_full):
                    selector.unregister(0)
                self._heard_s = float("inf")
                self.ask_to_end()
            else:
                self._hear(part)
            return False
        if not part:
            self._finish(key.fileobj)
            return False
        *lines, rest = _LINES.split(before + part)
        self._selector.modify(key.fileobj, selectors.EVENT_READ, (rank, name, rest))
        for line in lines:
            self._say_line(rank, name, line)
        return True

    def _say_line(self, rank: str, name: str, line: bytes) -> None:
        self._say({"rank": rank, "stream": name, "text": line.decode(errors="replace")})

    def _hear(self, part: bytes) -> None:
        *lines, self._told = (self._told + part).split(b"\n")
        for line in lines:
            if not line.startswith(BEGIN):
                continue
            self._may_begin = True
            if self._task.completed is not None:
                self._task.command[self._task.completed] += line[len(BEGIN) :].decode()

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[rank]
            for key in list(self._selector.get_map().values()):
                if key.data[0] == rank:  # What it wrote last.
                    while self._read(self._selector.get_key(key.fileobj)):
                        pass
                    self._finish(key.fileobj)
            status = process.returncode if process.returncode >= 0 else 128 - process.returncode
            result = self._scratch / f"result.{rank}"
            if result.exists():
                text = base64.b64encode(result.read_bytes()).decode()
                self._say({"rank": rank, "result": text})
            self._say({"rank": rank, "status": status})
            if status != 0:
                self.ask_to_end()

    def _finish(self, stream: Any) -> None:
        """Passes on a last line without an end."""
        if stream in self._selector.get_map():
            rank, name, rest = self._selector.get_key(stream).data
            self._selector.unregister(stream)
            if rest:
                self._say_line(rank, name, rest.rstrip(b"\r"))

    def ask_to_end(self) -> None:
        """They have a while, then they are killed."""
        if not self._end:
            self._end = time.monotonic() + _GRACE_S
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for process in self._running.values():
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                continue


def _lock(path: Path) -> int | None:
    """A descriptor that holds the file's lock for as long as this process lives; None: another does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_left() -> None:
    """Removes directories of this user's whose processes were killed, and could not do so."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # One without a lock is being made.
        with contextlib.suppress(OSError):
            # Another user's link to a directory of this user's is not followed.
            if path.lstat().st_uid != os.geteuid() or not (path / _LOCK).exists():
                continue
            descriptor = _lock(path / _LOCK)
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)


def main() -> None:
    task = Task(**json.loads(sys.stdin.buffer.readline()))
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as scratch:
        path = Path(scratch)
        # Nobody else may have it before it is locked.
        _lock(path / f"{_LOCK}.new")
        (path / f"{_LOCK}.new").rename(path / _LOCK)
        if task.secret:
            (path / "secret").write_text(task.secret + "\n")
            (path / "secret").chmod(0o600)
        for name, text in task.files.items():
            (path / name).write_bytes(base64.b64decode(text))
        ranks = _Ranks(task, path)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: ranks.ask_to_end())
        ranks.run()
