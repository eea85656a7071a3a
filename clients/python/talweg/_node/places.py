# SPDX-License-Identifier: Apache-2.0
"""The private directory in which the processes of a node meet."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path

# A socket's path has at most 107 bytes; what is added to this has at most 47.
_PARENT_BYTES_MAX = 60
_ASK_S = 0.02


class Unsafe(OSError):
    """A directory is not this user's alone."""


def is_kept(directory: Path) -> bool:
    """Whether no other user can put something else in the place of what this one makes there."""
    found = directory.stat()
    is_shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.getuid()) and not is_shared


def base(environment: Mapping[str, str]) -> Path:
    """Where the directories of this user's jobs lie. The same for all ranks of a node."""
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        told = environment.get(variable, "")
        is_short = told and len(told) <= _PARENT_BYTES_MAX
        if is_short and os.access(told, os.W_OK | os.X_OK) and is_kept(Path(told)):
            return Path(told) / f"talweg-{os.getuid()}"
    return Path(f"/tmp/talweg-{os.getuid()}")


def check_own(directory: Path) -> None:
    """Unsafe for one in which, or in whose place, another user may have put something."""
    for each in (directory, directory.parent):
        if not is_kept(each):
            raise Unsafe(
                f"another user may write to {each}, and what is in {directory} is run: set "
                "XDG_CACHE_HOME to a directory of your own"
            )


def make_private(directory: Path) -> None:
    """Makes a directory that only this user can enter; Unsafe where there is another one."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unsafe(
            f"{directory} is not a directory of mode 0700 that belongs to user {os.getuid()}: remove "
            "it, or set TMPDIR to a directory of your own"
        )


def of_job(environment: Mapping[str, str], *identity: object) -> Path:
    """The directory of one life of a job on one node."""
    text = "\0".join(str(each) for each in identity)
    return base(environment) / hashlib.sha256(text.encode()).hexdigest()[:16]


class Claim:
    """A directory that is this process's own until it is released, or the process ends.

    Another claim of it waits for that. What an earlier process left there is removed.
    """

    def __init__(self, directory: Path, timeout_s: float) -> None:
        """TimeoutError when the earlier one does not end. Unsafe as make_private()."""
        make_private(directory.parent)
        self.directory = directory
        self._lock_path = directory.with_suffix(".lock")
        self._lock = self._take(time.monotonic() + timeout_s)
        shutil.rmtree(directory, ignore_errors=True)
        make_private(directory)

    def _take(self, end: float) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever released it has removed the file that was locked here.
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(self._lock_path).st_ino == os.fstat(lock).st_ino:
                        return lock
            except BlockingIOError:
                if time.monotonic() > end:
                    os.close(lock)
                    raise TimeoutError(
                        f"another job of the same launcher and name still has {self.directory}"
                    ) from None
                time.sleep(_ASK_S)
            os.close(lock)

    def release(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self._lock_path.unlink()
        os.close(self._lock)
