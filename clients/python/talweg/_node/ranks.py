# SPDX-License-Identifier: Apache-2.0
"""Starts one host's ranks for a launcher on another host, which has ssh run this program.

It reads one line of JSON from stdin, a Task. It writes lines of JSON to stdout:

    {"rank", "stream", "text"}    a line that a rank has written; if it ends with a carriage return,
                                  a part of a line, such as a progress bar's
    {"rank", "status"}            a rank has ended
    {"rank", "result", "place"}   a file `result.PLACE` that a rank has left, in base64. PLACE is the
                                  rank, or RANK.LOCALRANK if this "rank" is a node's `talweg run`

When stdin closes, the launcher or the connection to it is gone, and this program ends the ranks.

A task that waits writes {"here"}, and starts its ranks when a line that starts with BEGIN comes.
The rest of that line completes its command; words that begin with a plus sign set variables, as in
+NAME=VALUE. A line that starts with NEWS tells of the list of hosts, and goes to NEWS_FILE. A task
with a `silence_s` ends its ranks if nothing
comes for so long, not even a BEAT, because the connection of a host that is silently cut off never
closes.
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
NEWS = b"n"
BEAT = b"\n"
_GRACE_S = 5.0
# Ranks wait while they have written more than that and the launcher has not read it.
_UNSENT_BYTES_MAX = 1 << 20
# The end of a line, or of a part of one. A part ends at a carriage return that more text follows.
_LINES = re.compile(rb"\r?\n|(?<=\r)(?!\n|\Z)")
_PR_SET_PDEATHSIG = 1
# The file of TALWEG_TASK_DIR that tells ranks of changes of the list of hosts: lines of a time in
# seconds, and of 1 for hosts that have gone, 2 for some that have come, or their sum.
NEWS_FILE = "hosts_news"
# The directory for the files that the ranks get and leave. A file in it is locked while it is used.
_PREFIX = "talweg-ranks-"
_LOCK = "lock"
_libc = ctypes.CDLL(None)


def use_interface(names: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Sets the first of these interfaces that this host has, if any, in `environment`."""
    own = [name for _, name in socket.if_nameindex()]
    for name in names:
        if name in own:
            environment["TALWEG_INTERFACE"] = name
            return


@dataclass
class Task:
    """The ranks to start on this host. `variables` has each rank's variables, by rank. They are
    added to `environment`.
    """

    command: list[str]
    directory: str
    environment: dict[str, str]
    variables: dict[str, dict[str, str]]
    secret: str = ""
    interfaces: list[str] = field(default_factory=list)  # Ranks use the first that the host has.
    files: dict[str, str] = field(default_factory=dict)  # For TALWEG_TASK_DIR, in base64.
    waits: bool = False
    # The index of the word of `command` that BEGIN's first word completes. The others follow it.
    completed: int | None = None
    silence_s: float = 0.0  # How long the launcher may be silent; 0 is no limit.


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Ranks:
    def __init__(self, task: Task, scratch: Path) -> None:
        self._task = task
        self._scratch = scratch
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._end = 0.0  # When the ranks that are left are killed.
        self._killed = False
        self._may_begin = not task.waits
        self._told = b""  # The part that has come of a line from the launcher.
        self._heard_s = time.monotonic()
        # It is used while much is unsent. It does not watch the ranks' pipes, so ranks wait.
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
        """Has a turn end when more can be sent, while something is unsent."""
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
            self._drop_unsent()  # The launcher is gone.
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
        """Reads what a rank has written. Returns whether more may come."""
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
            if line.startswith(NEWS):
                # On a full disk ranks are not told of the change. They train on.
                with contextlib.suppress(OSError):
                    with (self._scratch / NEWS_FILE).open("a") as file:
                        file.write(f"{time.time():.6f} {line[len(NEWS) :].decode()}\n")
            if not line.startswith(BEGIN):
                continue
            self._may_begin = True
            if self._task.completed is not None:
                end = self._task.completed + 1
                first, *others = line[len(BEGIN) :].decode().split(" ")
                told = [word[1:].partition("=") for word in others if word.startswith("+")]
                self._task.environment |= {name: value for name, _, value in told}
                others = [word for word in others if not word.startswith("+")]
                self._task.command[end - 1] += first
                self._task.command[end:end] = others

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[rank]
            for key in list(self._selector.get_map().values()):
                if key.data[0] == rank:  # The rank's last text may still be in its pipes.
                    while self._read(self._selector.get_key(key.fileobj)):
                        pass
                    self._finish(key.fileobj)
            status = process.returncode if process.returncode >= 0 else 128 - process.returncode
            for pattern in (f"result.{rank}", f"result.{rank}.*"):
                for path in self._scratch.glob(pattern):
                    text, place = base64.b64encode(path.read_bytes()).decode(), path.name[7:]
                    self._say({"rank": rank, "result": text, "place": place})
            self._say({"rank": rank, "status": status})
            if status != 0:
                self.ask_to_end()

    def _finish(self, stream: Any) -> None:
        """Passes on a last line that has no line end."""
        if stream in self._selector.get_map():
            rank, name, rest = self._selector.get_key(stream).data
            self._selector.unregister(stream)
            if rest:
                self._say_line(rank, name, rest.rstrip(b"\r"))

    def ask_to_end(self) -> None:
        """Asks the ranks to end. Those that have not after a while are killed."""
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
    """Returns a descriptor that holds the file's lock while this process lives; None if another
    process holds the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_left() -> None:
    """Removes this user's directories whose processes were killed before they could do it."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # A directory without a lock file is being made.
        with contextlib.suppress(OSError):
            # lstat() does not follow another user's link to a directory of this user.
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
        # The lock file gets its name when it is locked, so nobody else can lock it before.
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
