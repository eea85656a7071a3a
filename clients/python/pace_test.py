# SPDX-License-Identifier: Apache-2.0
"""How long rounds are that stand before others' gradients on a link."""

from __future__ import annotations

import heapq
import unittest
from dataclasses import dataclass

from talweg._elastic.pace import Pace

_BYTES_MAX = 2 << 20
_LANES = 2


@dataclass
class _Seen:
    """What was under way on the link, when the lines have found their pace."""

    longest_queue_s: float
    share: float  # How much of the link was used.


def _simulate(
    rate: float, latency_s: float, lines: int, seconds: float, bytes_max: int = _BYTES_MAX
) -> _Seen:
    """Lines that always have something to send, over one link which takes what comes in its order."""
    paces = [Pace(bytes_max) for _ in range(lines)]
    free_s = longest_s = 0.0
    carried = 0
    # When a round is over, which line's, its bytes, and when it began.
    under_way: list[tuple[float, int, int, float]] = []

    def send(line: int, now_s: float) -> None:
        nonlocal free_s, longest_s, carried
        nbytes = paces[line].chunk_bytes
        free_s = max(free_s, now_s) + nbytes / rate
        heapq.heappush(under_way, (free_s + latency_s, line, nbytes, now_s))
        if now_s > seconds / 2:
            longest_s, carried = max(longest_s, free_s - now_s), carried + nbytes

    for line in range(lines):
        for _ in range(_LANES):
            send(line, 0.0)
    while under_way[0][0] < seconds:
        over_s, line, nbytes, begun_s = heapq.heappop(under_way)
        paces[line].on_round(nbytes, begun_s, over_s)
        send(line, over_s)
    return _Seen(longest_s, carried / (rate * seconds / 2))


class PaceTest(unittest.TestCase):
    def test_a_gradient_never_waits_long_and_the_link_is_used(self) -> None:
        for megabits_per_s in (100, 1000, 10_000):
            for lines in (1, 2, 7):
                for latency_s in (0.0002, 0.002, 0.01):
                    with self.subTest(rate=megabits_per_s, lines=lines, latency=latency_s):
                        seen = _simulate(megabits_per_s * 125e3, latency_s, lines, 20.0)
                        # Two rounds, the way itself, and what other lines begin with.
                        begin_s = lines * _LANES * (16 << 10) / (megabits_per_s * 125e3)
                        self.assertLess(seen.longest_queue_s, 0.018 + latency_s + begin_s)
                        if megabits_per_s <= 1000:
                            self.assertGreater(seen.share, 0.9)

    def test_a_long_way_costs_no_rate(self) -> None:
        seen = _simulate(rate=12.5e6, latency_s=0.05, lines=1, seconds=60.0)
        self.assertGreater(seen.share, 0.5)
        least = _simulate(rate=12.5e6, latency_s=0.05, lines=1, seconds=60.0, bytes_max=16 << 10)
        self.assertGreater(seen.share, 2 * least.share)

    def test_rounds_that_are_not_full_do_not_count(self) -> None:
        pace = Pace(_BYTES_MAX)
        now_s = 0.0
        for _ in range(100):  # An entry of the log in each step.
            pace.on_round(1000, now_s, now_s + 0.005)
            now_s += 0.1
        self.assertEqual(pace.chunk_bytes, Pace(_BYTES_MAX).chunk_bytes)

    def test_a_round_is_never_longer_than_its_tensor(self) -> None:
        pace = Pace(_BYTES_MAX)
        now_s = 0.0
        for _ in range(100):
            pace.on_round(pace.chunk_bytes, now_s, now_s + 1e-5)
            now_s += 1e-5
        self.assertEqual(pace.chunk_bytes, _BYTES_MAX)


if __name__ == "__main__":
    unittest.main()
