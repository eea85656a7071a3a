# SPDX-License-Identifier: Apache-2.0
"""A control group whose processes get a part of a core and no more."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

_PERIOD_US = 20_000
_END_S = 10.0
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


class NoCap(Exception):
    """This machine does not let this user cap processes. The text has the machine's answer."""


class CpuCap:
    """A context manager. It removes the group when the block is left: end its processes before."""

    def __init__(self, cores: float) -> None:
        self._quota_us = max(1000, round(cores * _PERIOD_US))

    def __enter__(self) -> CpuCap:
        try:
            self._make()
        except OSError as error:
            raise NoCap(str(error)) from None
        return self

    def _make(self) -> None:
        has_v1 = (_V1 / "cpu.cfs_quota_us").exists()
        if not has_v1 and not (_V2 / "cgroup.controllers").exists():
            raise NoCap("there is no control group with the controller cpu")
        self._directory = Path(
            tempfile.mkdtemp(prefix=f"talweg-bench-{os.getpid()}-", dir=_V1 if has_v1 else _V2)
        )
        try:
            if has_v1:
                (self._directory / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self._directory / "cpu.cfs_quota_us").write_text(str(self._quota_us))
            else:
                (self._directory / "cpu.max").write_text(f"{self._quota_us} {_PERIOD_US}")
        except OSError:
            self._directory.rmdir()
            raise

    def __exit__(self, *_: object) -> None:
        # The kernel takes a moment to notice that the last process has ended.
        deadline_s = time.monotonic() + _END_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                self._directory.rmdir()
                return
            time.sleep(0.01)

    def enter(self) -> tuple[str, ...]:
        """Returns words to put before a command. They run it in the group."""
        script = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        return ("sh", "-c", script, str(self._directory))
