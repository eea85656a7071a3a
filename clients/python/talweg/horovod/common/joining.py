# SPDX-License-Identifier: Apache-2.0
"""join() for all frameworks."""

from __future__ import annotations

from collections.abc import Iterable

import talweg
from talweg import _client, _joining
from talweg._client import session
from talweg._joining import Announcements
from talweg.errors import InvalidArgument
from talweg.horovod.common import process_sets as sets

_announcements: Announcements | None = None


def _own_sets() -> Iterable[talweg.ProcessSet]:
    for each in list(sets._registered.values()):
        if each.included():
            yield talweg.ProcessSet(each.ranks or [])


def begin() -> None:
    """Called by init(): from now on joined ranks learn which names the others use."""
    global _announcements
    client = _client.current()
    _announcements = None
    if client.size > 1 or client.nodes_change:  # A single rank needs it only if others may come.
        _announcements = Announcements(client, _own_sets)


def _begin_anew(_: _client.Client) -> None:
    """Starts again with a new client, and keeps nothing of the earlier one."""
    if _announcements is not None:
        begin()


_client.call_when_replaced(_begin_anew)


def join() -> int:
    """Gives zeros to the others' reductions until all ranks have joined; returns the last one.

    Raises InvalidArgument while this rank has open handles.
    """
    client, life = _client.current(), session.current()
    if life.has_open:
        raise InvalidArgument(
            "hvd.join(): this rank has handles that were not synchronized: call hvd.synchronize() "
            "with each first"
        )
    if client.size == 1:
        return 0
    if _announcements is None or _announcements.client is not client:
        begin()
    assert _announcements is not None
    return _joining.join(_announcements)
