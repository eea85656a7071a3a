# SPDX-License-Identifier: Apache-2.0
"""Which hosts are this one, as horovodrun sees it."""

from __future__ import annotations

from collections.abc import Iterable

from talweg._node.hosts import is_here
from talweg._node.meeting import own_addresses

__all__ = ["filter_local_addresses", "get_local_host_addresses"]


def get_local_host_addresses() -> set[str]:
    """Returns this host's addresses."""
    return {"127.0.0.1", *own_addresses()}


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """Returns the names that are not this host's: horovodrun reaches them by ssh."""
    return [name for name in all_host_names if not is_here(name)]
