# SPDX-License-Identifier: Apache-2.0
"""How many samples each rank takes in a step, in proportion to its speed: docs/elastic.md.

All of it is arithmetic of whole numbers, so ranks that are told the same come to the same shares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

# A node and one of its local ranks.
Place = tuple[int, int]

# How many of its steps a rank times before it tells the median.
STEPS = 16
# Shares change only if that makes steps shorter by so many percent.
GAIN_PERCENT = 10
# The speed of a rank is this number, divided by its nanoseconds for a sample.
_SPEED = 1 << 64


def split(
    total: int, weights: Sequence[int], least: Sequence[int], most: Sequence[int]
) -> list[int]:
    """Splits `total` in proportion to `weights`, which are positive. Each part has its bounds.

    Parts are rounded by the largest remainder; of equal remainders the lower rank's is the larger.
    `total` lies between the sums of the bounds.
    """
    parts = [0] * len(weights)
    free, left = list(range(len(weights))), total
    while free:
        whole = sum(weights[rank] for rank in free)
        lacks = {rank: least[rank] * whole - left * weights[rank] for rank in free}
        exceeds = {rank: left * weights[rank] - most[rank] * whole for rank in free}
        lack = sum(each for each in lacks.values() if each > 0)
        excess = sum(each for each in exceeds.values() if each > 0)
        if lack == excess == 0:
            break
        # The larger of the two decides: what it fixes stays right when the others move.
        for rank in list(free):
            if lack >= excess and lacks[rank] > 0:
                parts[rank] = least[rank]
            elif excess >= lack and exceeds[rank] > 0:
                parts[rank] = most[rank]
            else:
                continue
            free.remove(rank)
        left = total - sum(parts)
    if free:
        whole, remainders = sum(weights[rank] for rank in free), {}
        for rank in free:
            parts[rank], remainders[rank] = divmod(left * weights[rank], whole)
        rest = total - sum(parts)
        for rank in sorted(free, key=lambda rank: (-remainders[rank], rank))[:rest]:
            parts[rank] += 1
    return parts


class Shares:
    """How many samples each rank takes in a full step. All ranks have them alike.

    They belong to places, because ranks' numbers change with the membership.
    """

    def __init__(self, batch_size: int, batch_size_max: int) -> None:
        self._batch_size, self._most = batch_size, batch_size_max
        # The share of each place, and by how much its last change moved it.
        self._known: dict[Place, tuple[int, int]] = {}
        self._places: tuple[Place, ...] = ()
        self._is_dealt = False  # `_known` has these places, and no others.
        self.by_rank: list[int] = []
        self.deal([(0, 0)])

    def deal(self, places: Sequence[Place]) -> bool:
        """Takes the ranks' places, in the order of their numbers. Returns whether they differ from
        those of before. A place that is new gets what the others have on average.
        """
        has_changed = tuple(places) != self._places
        if self._is_dealt and not has_changed:
            return False
        self._is_dealt = True
        self._places = tuple(places)
        self._take_known()
        # A joiner in the place of a lost rank sees other places here, and the survivors see the same
        # as before. So only a share that changes loses its last move, and both know the same.
        self._known = {
            place: (share, move if share == known else 0)
            for place, share in zip(places, self.by_rank)
            for known, move in [self._known.get(place, (0, 0))]
        }
        return has_changed

    def _take_known(self) -> None:
        total, count = self._batch_size * len(self._places), len(self._places)
        known = [self._known[place][0] for place in self._places if place in self._known]
        usual = sum(known) if known else 1
        weights = [
            self._known[place][0] * len(known) if place in self._known else usual
            for place in self._places
        ]
        self.by_rank = split(total, weights, [1] * count, [self._most] * count)

    def of_rest(self, count: int) -> list[int]:
        """Returns the shares of an epoch's last step, which has `count` samples."""
        ranks = len(self.by_rank)
        least = [1 if count >= ranks else 0] * ranks
        return split(count, self.by_rank, least, [count] * ranks)

    def on_times(self, times: Sequence[int], step_ns: int) -> bool:
        """Takes how long a sample takes each rank, and how long a step takes, in nanoseconds.
        Returns whether shares change.

        All ranks call it with the same times. Those of samples are positive.
        """
        total, ranks, own = sum(self.by_rank), len(self.by_rank), self.by_rank
        speeds = [max(_SPEED // time, 1) for time in times]
        best = split(total, speeds, [1] * ranks, [self._most] * ranks)
        slowest = _slowest(own, times)
        if (slowest - _slowest(best, times)) * 100 < max(slowest, step_ns) * GAIN_PERCENT:
            return False
        moves = [self._known.get(place, (0, 0))[1] for place in self._places]
        if sum((there - here) * move for there, here, move in zip(best, own, moves)) < 0:
            # The last change went too far, or speeds have changed: half of the way back.
            speeds = [there + here for there, here in zip(best, own)]
        least = [(here + 1) // 2 for here in own]
        most = [min(2 * here, self._most) for here in own]
        new = split(total, speeds, least, most)
        if _slowest(new, times) >= slowest:
            return False
        self._known = {
            place: (there, there - here) for place, there, here in zip(self._places, new, own)
        }
        self.by_rank = new
        return True

    @property
    def state(self) -> list[tuple[Place, int, int]]:
        """The shares and last moves, by place, for a joiner or a later return to this point."""
        return [(place, *known) for place, known in sorted(self._known.items())]

    @state.setter
    def state(self, state: Any) -> None:
        self._known = {tuple(place): (share, move) for place, share, move in state}
        self._is_dealt = False
        self._take_known()


def _slowest(shares: Sequence[int], times: Sequence[int]) -> int:
    return max(share * time for share, time in zip(shares, times))


class OwnPace:
    """How long a sample, and a step, take this rank, by the steps since its share has changed."""

    def __init__(self) -> None:
        self._samples_ns: deque[int] = deque(maxlen=STEPS)
        self._steps_ns: deque[int] = deque(maxlen=STEPS)
        self._skips = True

    def begin_anew(self, skips: bool) -> None:
        """Forgets the steps. With `skips` the next one does not count: it may compile, or start
        a loader's workers.
        """
        self._samples_ns.clear()
        self._steps_ns.clear()
        self._skips |= skips

    def on_step(self, own_ns: int, step_ns: int, samples: int) -> None:
        """This rank has taken `own_ns` for so many samples, in a step that has taken `step_ns`."""
        if self._skips:
            self._skips = False
            return
        self._samples_ns.append(max(own_ns // samples, 1))
        self._steps_ns.append(step_ns)

    @property
    def told_ns(self) -> tuple[int, int]:
        """The medians of a sample's and of a step's time. 0, 0: too few steps have been timed."""
        if len(self._samples_ns) < STEPS:
            return 0, 0
        return sorted(self._samples_ns)[STEPS // 2], sorted(self._steps_ns)[STEPS // 2]
