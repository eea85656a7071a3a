# SPDX-License-Identifier: Apache-2.0
"""A pipe between threads, for programs that use Horovod's."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Pipe"]


class Pipe:
    """Carries texts or bytes from a thread to another. It holds one at a time."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._left: Any = None  # What has been written and not been read.
        self._is_closed = False

    def write(self, buf: Any) -> None:
        """Blocks until what was written before has been read. Raises RuntimeError if closed."""
        with self._change:
            self._change.wait_for(lambda: self._left is None or self._is_closed)
            if self._is_closed:
                raise RuntimeError("Pipe is closed")
            self._left = buf
            self._change.notify_all()

    def read(self, length: int = -1) -> Any:
        """Returns what was written, at most `length` of it. Blocks until there is something.

        Returns None when the pipe is closed and empty.
        """
        with self._change:
            self._change.wait_for(lambda: self._left is not None or self._is_closed)
            found = self._left
            if found is not None and 0 < length < len(found):
                found, self._left = found[:length], found[length:]
            else:
                self._left = None
            self._change.notify_all()
            return found

    def flush(self) -> None:
        """Does nothing: what is written can be read at once."""

    def close(self) -> None:
        with self._change:
            self._is_closed = True
            self._change.notify_all()
