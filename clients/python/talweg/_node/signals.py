# SPDX-License-Identifier: Apache-2.0
"""Counts the signals that ask a launcher or a keeper to end."""

from __future__ import annotations

# A batch system signals a whole process group, and a parent in that group forwards the signal.
_REPEAT_S = 1.0


class Signals:
    """What comes within a second after a signal that counts is a repeat, and does not count."""

    def __init__(self) -> None:
        self.first = 0  # The number of the first signal.
        self.count = 0
        self._counted_s = 0.0

    def add(self, number: int, now_s: float) -> bool:
        """Returns whether the signal counts. `now_s` is of a monotonic clock."""
        if self.count and now_s - self._counted_s < _REPEAT_S:
            return False
        self.first = self.first or number
        self.count += 1
        self._counted_s = now_s
        return True
