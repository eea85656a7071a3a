# SPDX-License-Identifier: Apache-2.0
"""The library's statuses as exceptions, with the library's text."""

from __future__ import annotations

import ctypes

from talweg import errors

# The exceptions by talweg_status. TALWEG_PENDING and TALWEG_EVENTS_LOST have none here.
EXCEPTIONS: dict[int, type[errors.TalwegError]] = {
    1: errors.Timeout,
    2: errors.InvalidArgument,
    3: errors.Mismatch,
    4: errors.Busy,
    5: errors.JobFailed,
    6: errors.AgentLost,
    7: errors.Forked,
    8: errors.VersionMismatch,
    9: errors.OutOfMemory,
    10: errors.Unsupported,
    11: errors.Aborted,
    12: errors.NoAgent,
    13: errors.PermissionDenied,
    14: errors.RankTaken,
    15: errors.Closed,
    16: errors.LimitReached,
    18: errors.ProtocolError,
    19: errors.InternalError,
}


def last_error(library: ctypes.CDLL) -> str:
    """Returns the text of this thread's last call that has failed."""
    return (library.talweg_last_error() or b"").decode(errors="replace")


def check(library: ctypes.CDLL, status: int) -> None:
    """Raises the exception of a status that is not TALWEG_OK."""
    if status != 0:
        raise EXCEPTIONS.get(status, errors.TalwegError)(last_error(library))
