# SPDX-License-Identifier: Apache-2.0
"""Horovod's exceptions."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks disagree, a rank has died, or init() was not called."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts have come or gone in an elastic job. With `skip_sync` the ranks need no sync()."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Two versions of Horovod are installed."""


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
