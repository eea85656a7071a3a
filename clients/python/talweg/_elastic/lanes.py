# SPDX-License-Identifier: Apache-2.0
"""The numbers that all ranks tell each other in one round. The greatest of each lane comes to all.

A value that must be equal at all ranks takes two lanes: the value, and the largest number minus the
value. The two greatest numbers fit together only if all ranks that gave a value gave the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from talweg._declaration import Op

if TYPE_CHECKING:
    from talweg._client import Client

U64_MAX = 2**64 - 1
# How many lanes tell of survivors' and joiners' counters (state_rounds.tell_counters).
COUNTER_LANES = 4


def greatest(client: Client, name: str, lanes: np.ndarray, op: Op = Op.MAX) -> np.ndarray:
    """Runs a round of all ranks, and returns `lanes`, which then hold the greatest of each lane, or
    what `op` makes of it. A call after an interrupted one goes on with the same round.
    """
    client.run(name, lanes, op, goes_on=True)
    return lanes


def tell_alike(lanes: np.ndarray, at: int, value: int) -> None:
    """Tells a value that must be equal at all ranks."""
    lanes[at], lanes[at + 1] = value, U64_MAX - value


def are_alike(lanes: np.ndarray, at: int) -> bool:
    """Whether all ranks that told a value there told the same. At least one must have told one."""
    return int(lanes[at]) == U64_MAX - int(lanes[at + 1])


def times_count(ranks: int) -> int:
    """Returns how many lanes a sampler has whose batches are in proportion to speed: one a rank, and
    one for the step.
    """
    return ranks + 1


def tell_times(rows: np.ndarray, rank: int, times: Sequence[tuple[int, int]]) -> None:
    """Tells what a sample takes this rank, and what a step takes. `rows` has one for each sampler."""
    for row, (sample_ns, step_ns) in zip(rows, times):
        row[rank], row[-1] = sample_ns, step_ns


_WORD_BITS = 64


def words(bits: int) -> int:
    """Returns how many lanes hold so many bits."""
    return -(-bits // _WORD_BITS)


class EnteredLanes:
    """The lanes in which nodes say that they have entered: one bit a member of the view."""

    def __init__(self, members: int) -> None:
        self.all: np.ndarray = np.zeros(words(members), np.uint64)

    def tell(self, place: int) -> None:
        """Tells that the member at this place of the view has entered."""
        word, bit = divmod(place, _WORD_BITS)
        self.all[word] |= np.uint64(1 << bit)

    @property
    def places(self) -> list[int]:
        """The places of the members that have entered."""
        bits = range(self.all.size * _WORD_BITS)
        return [at for at in bits if int(self.all[at // _WORD_BITS]) >> at % _WORD_BITS & 1]


class ListenerLanes:
    """The lanes in which each rank says to which nodes that have entered it has a line.

    A rank has one bit for each of these nodes, and none for the other members. So while at most 64
    nodes enter at once, there are as many lanes as ranks.
    """

    def __init__(self, ranks: int, entered: Sequence[int]) -> None:
        """`entered` are places in the view, the same at all ranks."""
        self._entered = list(entered)
        self._words = words(len(entered))
        self.all: np.ndarray = np.zeros(ranks * self._words, np.uint64)

    def tell(self, rank: int, listens: Sequence[bool]) -> None:
        """Tells what this rank has lines to: `listens` has a word for each member of the view."""
        for at, place in enumerate(self._entered):
            word, bit = divmod(at, _WORD_BITS)
            self.all[rank * self._words + word] |= np.uint64(int(listens[place]) << bit)

    def listeners(self, place: int) -> list[int]:
        """Returns the ranks that have a line to the member at this place."""
        if place not in self._entered:
            return []
        word, bit = divmod(self._entered.index(place), _WORD_BITS)
        own = self.all[word :: self._words]
        return [rank for rank, lane in enumerate(own) if int(lane) >> bit & 1]


class StepLanes:
    """The lanes of the round at the end of a step."""

    _EPOCH, _DIGEST, _ENDED_AT = 0, 1, 3

    def __init__(self, ranks: int, standbys: int, samplers: int = 0) -> None:
        """`samplers` are those of the State whose batches are in proportion to speed."""
        self.all: np.ndarray = np.zeros(self.count(ranks, standbys, samplers), np.uint64)
        # One lane a rank: 1 if it ends the step. A rank that is gone, or has joined, leaves 0.
        self._ended, rest = np.split(self.all[self._ENDED_AT :], [ranks])
        # One lane a standby: 1 if the ranks that it has asked for the state may not begin to give
        # it.
        self.holds, self.counters, times = np.split(rest, [standbys, standbys + COUNTER_LANES])
        self.times = times.reshape(samplers, times_count(ranks))

    @classmethod
    def count(cls, ranks: int, standbys: int, samplers: int = 0) -> int:
        """Returns the number of lanes."""
        return cls._ENDED_AT + ranks + standbys + COUNTER_LANES + samplers * times_count(ranks)

    def tell_end(self, rank: int) -> None:
        """Tells that the rank ends the step."""
        self._ended[rank] = 1

    @property
    def ended(self) -> tuple[bool, ...]:
        """Whether each rank has ended the step, by rank."""
        return tuple(bool(lane) for lane in self._ended)

    def tell_epoch(self, epoch: int) -> None:
        """Tells the epoch of the newest view that this rank's agent has."""
        self.all[self._EPOCH] = epoch

    @property
    def newest_epoch(self) -> int:
        """The newest epoch that any rank has told."""
        return int(self.all[self._EPOCH])

    def tell_digest(self, digest: int) -> None:
        """Tells the digest of this rank's State."""
        tell_alike(self.all, self._DIGEST, digest)

    @property
    def digests_differ(self) -> bool:
        """Whether ranks have told different digests."""
        return bool(self.all[self._DIGEST]) and not are_alike(self.all, self._DIGEST)
