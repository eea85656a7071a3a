# SPDX-License-Identifier: Apache-2.0
"""What hosts that come and go mean to a rank."""

from __future__ import annotations

from enum import IntFlag

__all__ = ["HostUpdateResult"]


class HostUpdateResult(IntFlag):
    """Whether hosts have come, or gone, or both."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added
