# SPDX-License-Identifier: Apache-2.0
"""Removes all files and processes of a bench, however the bench ends.

Everything that the bench starts has the scratch directory in its environment. It writes below that directory, or
below another one in shared memory. A second process outlives the bench and waits for its end. Then it kills
whatever still has that environment, and removes both directories. A run that ends as it should leaves nothing to
kill.
"""

from __future__ import annotations

import contextlib
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
_KILL_S = 20.0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """The directory for temporary files of this process, and of all that it starts from here on."""
    before = {name: os.environ.get(name) for name in (_VARIABLE, _SHARED, "XDG_RUNTIME_DIR")}
    # Not where TMPDIR says, because Unix sockets' paths are short.
    directory = tempfile.mkdtemp(prefix="talweg-bench-", dir="/tmp")
    shared = tempfile.mkdtemp(prefix="talweg-bench-", dir="/dev/shm")
    cleaner = subprocess.Popen(
        [sys.executable, __file__, directory, shared],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the bench.
    )
    try:
        os.environ[_VARIABLE] = tempfile.tempdir = directory
        os.environ[_SHARED] = shared
        os.environ.pop("XDG_RUNTIME_DIR", None)  # Some ask for it before TMPDIR.
        yield Path(directory)
    finally:
        tempfile.tempdir = None
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        cleaner.communicate()


def shared_memory() -> Path:
    """Where peers may put files that are memory. Names made of pids would clash: a sandbox has its own pids."""
    return Path(os.environ[_SHARED])


def _inhabitants(directory: str) -> list[int]:
    """Processes that were started with the directory in their environment."""
    wanted = f"{_VARIABLE}={directory}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _clean(directory: str, shared: str) -> None:
    deadline_s = time.monotonic() + _KILL_S
    # A process that is forked while it looks is found the next time.
    while (pids := _inhabitants(directory)) and time.monotonic() < deadline_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for each in (directory, shared):
        shutil.rmtree(each, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _clean(sys.argv[1], sys.argv[2])
