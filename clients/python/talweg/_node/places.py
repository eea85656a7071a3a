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

# A socket's path has at most 107 bytes. The parts after this directory have at most 47.
_PARENT_BYTES_MAX = 60
_ASK_S = 0.02


class Unsafe(OSError):
    """A directory does not belong to this user alone."""


def is_kept(directory: Path) -> bool:
    """Whether no other user can replace what this user makes in the directory."""
    found = directory.stat()
    is_shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.getuid()) and not is_shared


def base(environment: Mapping[str, str]) -> Path:
    """Returns the directory of this user's jobs. It is the same for all ranks of a node."""
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        told = environment.get(variable, "")
        # Ranks and the keeper run in different directories: a relative path means several places.
        is_fit = os.path.isabs(told) and len(os.fsencode(told)) <= _PARENT_BYTES_MAX
        if is_fit and os.access(told, os.W_OK | os.X_OK) and is_kept(Path(told)):
            return Path(told) / f"talweg-{os.getuid()}"
    return Path(f"/tmp/talweg-{os.getuid()}")


def check_own(directory: Path) -> None:
    """Raises Unsafe if another user may have written into the directory, or replaced it."""
    for each in (directory, directory.parent):
        if not is_kept(each):
            raise Unsafe(
                f"another user may write to {each}, and programs in {directory} are run: set "
                "XDG_CACHE_HOME to a directory of your own"
            )


def make_private(directory: Path) -> None:
    """Makes a directory that only this user can enter. Raises Unsafe if another kind is there."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unsafe(
            f"{directory} is not a directory of mode 0700 that belongs to user {os.getuid()}: remove "
            "it, or set TMPDIR to a directory of your own"
        )


def name_of(*identity: object) -> str:
    """Returns a name of 16 letters and digits. Another identity has another name."""
    text = "\0".join(str(each) for each in identity)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def of_job(environment: Mapping[str, str], *identity: object) -> Path:
    """Returns the directory of a job on one node. `identity` tells apart jobs, and their runs."""
    return base(environment) / name_of(*identity)


class Claim:
    """A directory that is this process's own until release(), or until the process ends.

    Another claim of the directory waits for that. Files that an earlier process left there are
    removed.
    """

    def __init__(self, directory: Path, timeout_s: float) -> None:
        """Raises TimeoutError if an earlier claim lasts longer. Raises Unsafe as make_private()."""
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
                # release() may have removed this file before it was locked: then it is no lock.
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
