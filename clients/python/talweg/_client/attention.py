# SPDX-License-Identifier: Apache-2.0
"""What a thread does for open calls while it waits for other ranks.

A call whose rounds are all pushed needs nothing more from this rank, as long as all ranks call the
same. If they do not, each rank has to take part in the rounds that the others have begun. A rank
that has the call's handle, but waits for something else, would keep the others waiting. They would
wait for ever if it waits for something that comes from one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol


class _Channel(Protocol):
    def attend(self) -> None: ...


class Attention:
    """One client's. Called when a wait has taken a while, by any thread; it waits for nothing that
    the ranks have declared.
    """

    def __init__(self, channels: Mapping[Any, _Channel]) -> None:
        self._channels = channels
        self._lock = threading.Lock()

    def __call__(self) -> None:
        # A call that is carried on may wait itself.
        if not self._channels or not self._lock.acquire(blocking=False):
            return
        try:
            for channel in list(self._channels.values()):
                channel.attend()
        finally:
            self._lock.release()
