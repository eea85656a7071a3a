# SPDX-License-Identifier: Apache-2.0
"""What a rank hears of the list of hosts before its nodes change, as Horovod's driver tells it."""

from __future__ import annotations

import os
import queue
from enum import IntFlag
from pathlib import Path
from typing import Any

from talweg._node.ranks import NEWS_FILE

__all__ = ["HostMessages", "HostUpdateResult"]


class HostUpdateResult(IntFlag):
    """Whether hosts have come, or gone, or both."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class HostMessages(queue.Queue[Any]):
    """A queue of times and HostUpdateResults. horovodrun's launcher fills it through a file."""

    def __init__(self) -> None:
        directory = os.environ.get("TALWEG_TASK_DIR")
        self._file = None if directory is None else Path(directory) / NEWS_FILE
        super().__init__()
        self._offset = self._length()

    def _length(self) -> int:
        try:
            return self._file.stat().st_size if self._file is not None else 0
        except OSError:  # Nothing has changed yet.
            return 0

    def _qsize(self) -> int:
        """Called by all methods that ask whether the queue is empty."""
        if self._file is not None and self._length() > self._offset:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
            *lines, rest = text.split(b"\n")
            self._offset += len(text) - len(rest)
            for line in lines:
                moment, change = line.split()
                self.queue.append((float(moment), HostUpdateResult(int(change))))
        return len(self.queue)
