# SPDX-License-Identifier: Apache-2.0
"""Removes all files and processes of a bench, however the bench ends.

Every process that the bench starts has the scratch directory in its environment. It writes into
that directory, or into another one in shared memory. A second process outlives the bench and waits
for its end. Then it kills all processes that still have that environment, and removes both
directories. A normal run leaves nothing to kill. If both processes are killed, a later bench
does what they would have done.

A directory is in use as long as a process holds the lock of a file in it. The bench takes this
lock, and its cleaner inherits it. The kernel releases it when both have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "TMPDIR"
_SHARED = "TALWEG_BENCH_SHARED_MEMORY"
_PREFIX, _LOCK = "talweg-bench-", ".in-use"
_PLACES = ("/tmp", "/dev/shm")  # Where they are. The paths of Unix sockets must be short.
_KILL_S = 20.0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A context with a directory for temporary files of this process and all that it starts."""
    before = {name: os.environ.get(name) for name in (_VARIABLE, _SHARED, "XDG_RUNTIME_DIR")}
    for place in _PLACES:
        remove_left(place)
    (directory, lock), (shared, shared_lock) = (_make(place) for place in _PLACES)
    cleaner = subprocess.Popen(
        [sys.executable, __file__, directory, shared],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches only the bench.
        pass_fds=(lock, shared_lock),
    )
    try:
        os.environ[_VARIABLE] = tempfile.tempdir = directory
        os.environ[_SHARED] = shared
        os.environ.pop("XDG_RUNTIME_DIR", None)  # Some programs use it rather than TMPDIR.
        yield Path(directory)
    finally:
        tempfile.tempdir = None
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        cleaner.communicate()
        os.close(lock)
        os.close(shared_lock)


def _make(place: str) -> tuple[str, int]:
    """Makes a directory. Returns it, and a descriptor that holds its lock."""
    while True:
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        lock = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink > 0:
            return directory, lock
        os.close(lock)  # Another bench has found it before it was locked, and has removed it.


def remove_left(place: str) -> None:
    """Removes the directories there of benches that were killed together with their cleaners, and
    kills the processes that have them.
    """
    for directory in Path(place).glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):  # Another user's, or one that goes away.
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clean(str(directory))
            finally:
                os.close(lock)


def shared_memory() -> Path:
    """Returns the directory for peers' files in shared memory.

    Names made of PIDs would clash, because a sandbox has its own PIDs.
    """
    return Path(os.environ[_SHARED])


def _inhabitants(*directories: str) -> list[int]:
    """Returns the processes that have one of the directories in their environment."""
    wanted = {f"{_VARIABLE}={directory}".encode() for directory in directories}
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and not wanted.isdisjoint(
                (entry / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(entry.name))
    return found


def _clean(*directories: str) -> None:
    """Kills the processes that have one of the directories in their environment. Removes them."""
    deadline_s = time.monotonic() + _KILL_S
    # A process that is forked during a look is found in the next one.
    while (pids := _inhabitants(*directories)) and time.monotonic() < deadline_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for each in directories:
        shutil.rmtree(each, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _clean(*sys.argv[1:])
