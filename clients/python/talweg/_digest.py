# SPDX-License-Identifier: Apache-2.0
"""Whether ranks hold equal bytes: talweg_digest() of talweg.h."""

from __future__ import annotations

from typing import Any

import numpy as np

from talweg import _native


class Digest:
    """A digest of bytes that are given piece by piece."""

    def __init__(self) -> None:
        self.value = 0  # 64 bits.

    def update(self, data: Any) -> None:
        """`data`: a buffer without gaps, as bytes and contiguous arrays are."""
        view: np.ndarray = np.frombuffer(data, np.uint8)
        digest = _native.library().talweg_digest(view.ctypes.data, view.size, self.value)
        self.value = int(digest)
