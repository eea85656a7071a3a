# SPDX-License-Identifier: Apache-2.0
"""Keeps what a launcher cannot write yet, so a reader that stops reading does not stop it."""

from __future__ import annotations

import errno
import os
import select
import selectors
import time

# A write of so many bytes does not block if poll() says that the pipe has room.
_PIECE_BYTES = select.PIPE_BUF
# With more unsent bytes than that the launcher reads nothing more from the ranks.
_BYTES_MAX = 1 << 20


class Output:
    """One output. Only drain() blocks. One thread calls it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unsent = bytearray()
        self._selectors: list[selectors.BaseSelector] = []
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._failure = 0  # The error of the last write; 0 if it succeeded.
        # Whether the output's reader has gone.
        self.is_gone = False

    @property
    def is_full(self) -> bool:
        return len(self._unsent) > _BYTES_MAX

    def add(self, text: str) -> None:
        if not self.is_gone:
            self._unsent += text.encode(errors="replace")

    def write(self) -> str:
        """Writes while there is room. Drops text that cannot be written, as on a full disk, and
        returns the reason once.
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
        """Has the selector wake when more can be written, while text is unsent. The data of the
        selector's key is None.
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
            return  # A regular file always has room. A closed file fails here, too.
        self._selectors.append(selector)

    def drain(self, deadline_s: float) -> None:
        """Returns when all is written, or when time.monotonic() is `deadline_s`."""
        while True:
            self.write()
            left_s = deadline_s - time.monotonic()
            if not self._unsent or self.is_gone or left_s <= 0:
                return
            self._poll.poll(left_s * 1e3)
