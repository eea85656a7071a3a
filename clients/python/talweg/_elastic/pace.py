# SPDX-License-Identifier: Apache-2.0
"""Chooses the length of the rounds in which a survivor sends its state: docs/elastic.md."""

from __future__ import annotations

from collections import deque

# Bytes under way delay the others' gradients wherever links meet, because only this host's own
# agent knows priorities. So a round takes this many seconds, and half the time of the shortest
# round.
_ROUND_S = 0.008
# A line begins with so few bytes, so that the shortest round shows the time of the way, and not
# that of other lines' rounds.
_BYTES_MIN = 16 << 10
# A rate is measured over _ROUNDS whole rounds, one after another. The best of the last _RATES
# counts: a line that gradients have slowed down is as fast as before when they are over.
_ROUNDS = 4
_RATES = 16


class Pace:
    """Follows the rate of a line. It has no clock: the sender tells of the times.

    Lines that share a link each get a part of its rate, so what all have under way there takes as
    long as if there were one.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.chunk_bytes = min(_BYTES_MIN, bytes_max)
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._least_s = float("inf")  # The time of the shortest round.
        self._last_s = 0.0  # When the last round was over.
        self._since_s = 0.0  # The rounds that are counted: their begin, number and bytes.
        self._count = self._bytes = 0

    def on_round(self, nbytes: int, begun_s: float, over_s: float) -> None:
        """Takes the times of a round, from `begun_s` to `over_s`. Rounds come in their order."""
        self._least_s = min(self._least_s, over_s - begun_s)
        last_s, self._last_s = self._last_s, over_s
        if nbytes < self.chunk_bytes or begun_s > last_s:
            # There was no more to send, or nothing was under way.
            self._count = self._bytes = 0
        if nbytes < self.chunk_bytes:
            return
        if self._count == 0:
            self._since_s = max(begun_s, last_s)
        self._count, self._bytes = self._count + 1, self._bytes + nbytes
        elapsed_s = over_s - self._since_s
        if self._count < _ROUNDS or elapsed_s <= 0.0:
            return
        self._rates.append(self._bytes / elapsed_s)
        wanted = int(max(self._rates) * (_ROUND_S + self._least_s / 2))
        wanted = min(max(wanted, self.chunk_bytes // 2), self.chunk_bytes * 2)
        self.chunk_bytes = min(max(wanted, _BYTES_MIN), self._bytes_max)
        self._count = self._bytes = 0
