# SPDX-License-Identifier: Apache-2.0
"""Whether ranks hold equal bytes: talweg_digest() of talweg.h."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from talweg._library import native


class Digest:
    """A digest of bytes that are given piece by piece."""

    def __init__(self) -> None:
        self.value = 0  # 64 bits.

    def update(self, data: Any) -> None:
        """`data`: a buffer without gaps, as bytes and contiguous arrays are."""
        view: np.ndarray = np.frombuffer(data, np.uint8)
        digest = native.library().talweg_digest(view.ctypes.data, view.size, self.value)
        self.value = int(digest)


# A thread hashes so much at once: whoever waits for it waits for no more.
_SLICE_BYTES = 1 << 20


class Hashing:
    """A digest that a thread makes beside the program, while the buffers stay as they are.

    Whoever is about to change them calls finish() before. Without a thread finish() hashes all.
    """

    def __init__(self, buffers: Iterable[Any], close: Callable[[], None] = lambda: None) -> None:
        """`close`: called by close()."""
        self.close = close
        self._total = Digest()
        self._lock = threading.Lock()
        self._left: deque[np.ndarray] = deque()
        for buffer in buffers:
            view: np.ndarray = np.frombuffer(buffer, np.uint8)
            for begin in range(0, view.size, _SLICE_BYTES):
                self._left.append(view[begin : begin + _SLICE_BYTES])
        self._is_hurried = False

    def start(self) -> None:
        """Has a thread begin."""
        threading.Thread(target=self._run, name="talweg-digest", daemon=True).start()

    def _run(self) -> None:
        while self._left and not self._is_hurried:
            with self._lock:
                if self._left:
                    self._total.update(self._left.popleft())

    def finish(self) -> int:
        """Returns the digest, once all is hashed."""
        self._is_hurried = True
        with self._lock:
            while self._left:
                self._total.update(self._left.popleft())
        return self._total.value
