# SPDX-License-Identifier: Apache-2.0
"""What a launcher has yet to write to its own outputs: a reader that stops reading does not stop it."""

from __future__ import annotations

import errno
import os
import select
import selectors
import time

# A write of so much does not block a pipe of which poll says that there is room.
_PIECE_BYTES = select.PIPE_BUF
# Above that it is better to read no more from those whose lines these are.
_BYTES_MAX = 1 << 20


class Output:
    """One output. Nothing blocks but drain(). One thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unsent = bytearray()
        self._selectors: list[selectors.BaseSelector] = []
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._failure = 0  # Why the last write has failed, until one succeeds.
        # Nobody reads it any more.
        self.is_gone = False

    @property
    def is_full(self) -> bool:
        return len(self._unsent) > _BYTES_MAX

    def add(self, text: str) -> None:
        if not self.is_gone:
            self._unsent += text.encode(errors="replace")

    def write(self) -> str:
        """Writes while there is room. What cannot be written, as on a full disk, is dropped: returns
        why, once.
        """
        while self._unsent and not self.is_gone and self._poll.poll(0):
            try:
                written = os.write(self._fd, bytes(self._unsent[:_PIECE_BYTES]))
            except BlockingIOError:
                break
            except OSError as error:
                self._unsent.clear()
                if error.errno == errno.EPIPE:
                    self.is_gone = True
                elif self._failure != error.errno:
                    self._failure = error.errno or 0
                    return f"{error.strerror}"
                return ""
            self._failure = 0
            del self._unsent[:written]
        return ""

    def wake(self, selector: selectors.BaseSelector) -> None:
        """Has the selector wake when more can be written, while something is unsent. Its key's data is
        None.
        """
        is_in = selector in self._selectors
        if bool(self._unsent) == is_in:
            return
        if is_in:
            self._selectors.remove(selector)
            selector.unregister(self._fd)
            return
        try:
            selector.register(self._fd, selectors.EVENT_WRITE)
        except OSError:
            return  # A regular file, which always has room, or one that is closed.
        self._selectors.append(selector)

    def drain(self, deadline_s: float) -> None:
        """Returns when all is written, or at that time of the monotonic clock."""
        while True:
            self.write()
            left_s = deadline_s - time.monotonic()
            if not self._unsent or self.is_gone or left_s <= 0:
                return
            self._poll.poll(left_s * 1e3)
