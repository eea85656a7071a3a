# SPDX-License-Identifier: Apache-2.0
"""What a thread does for open calls while it waits for other ranks.

A call whose rounds are all pushed needs nothing more from this rank, as long as all ranks make the
same call. If they do not, each rank has to take part in the rounds that the others have begun. A
rank that holds the call's handle, but waits for something else, would keep the others waiting.
They would wait for ever if the rank waits for something that comes from one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from talweg import _interrupts


class _Channel(Protocol):
    def attend(self) -> None: ...


class Attention:
    """The attention of one client. Any thread calls it when its wait has taken a while. It never
    waits for anything that the ranks have declared.
    """

    def __init__(self, channels: Mapping[Any, _Channel]) -> None:
        self._channels = channels
        self._lock = threading.Lock()

    def __call__(self) -> None:
        _interrupts.deliver()
        # Carrying on a call may itself wait, and come back here.
        if not self._channels or not self._lock.acquire(blocking=False):
            return
        try:
            for channel in list(self._channels.values()):
                channel.attend()
        finally:
            self._lock.release()
