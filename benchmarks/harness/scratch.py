# SPDX-License-Identifier: Apache-2.0
"""Removes all files and processes of a bench, however the bench ends.

Every process that the bench starts has the scratch directory in its environment. It writes into
that directory, or into another one in shared memory. A second process outlives the bench and waits
for its end. Then it kills all processes that still have that environment, and removes both
directories. A normal run leaves nothing to kill.
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
    """A context with a directory for temporary files of this process and all that it starts."""
    before = {name: os.environ.get(name) for name in (_VARIABLE, _SHARED, "XDG_RUNTIME_DIR")}
    # It ignores TMPDIR, because the paths of Unix sockets must be short.
    directory = tempfile.mkdtemp(prefix="talweg-bench-", dir="/tmp")
    shared = tempfile.mkdtemp(prefix="talweg-bench-", dir="/dev/shm")
    cleaner = subprocess.Popen(
        [sys.executable, __file__, directory, shared],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches only the bench.
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


def shared_memory() -> Path:
    """Returns the directory for peers' files in shared memory.

    Names made of PIDs would clash, because a sandbox has its own PIDs.
    """
    return Path(os.environ[_SHARED])


def _inhabitants(directory: str) -> list[int]:
    """Returns the processes that have the directory in their environment."""
    wanted = f"{_VARIABLE}={directory}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _clean(directory: str, shared: str) -> None:
    deadline_s = time.monotonic() + _KILL_S
    # A process that is forked during a look is found in the next one.
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
