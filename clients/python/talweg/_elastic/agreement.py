# SPDX-License-Identifier: Apache-2.0
"""The round in which all ranks name one view, and take their numbers from it: docs/elastic.md.

`talweg.agree` is of unsigned numbers, of which the greatest counts. Each rank says which view it
knows, and what it has and needs of the State, until all say the same view.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from talweg._collectives import objects
from talweg._declaration import Op
from talweg._elastic.giving import Giving
from talweg._elastic.replay import Replay
from talweg._elastic.views import View, view_of

if TYPE_CHECKING:
    from talweg._client import Client

U64_MAX = 2**64 - 1

_NAME = "talweg.agree"
_LANES = 15
_WORD_BITS = 64


@dataclass(frozen=True)
class Said:
    """What this rank says of itself."""

    is_joiner: bool
    # It has been attached again, to a job that has begun without it or by it.
    begins_anew: bool
    holds_state: bool  # There is a State, that is: a joiner's is not the others' yet.
    wants_state: bool
    has_caught_up: bool


@dataclass(frozen=True)
class Agreed:
    """What all ranks have said."""

    epoch: int
    wanted: bool  # Somebody needs the state.
    caught_up: bool  # Somebody has got it beside the steps.
    source: tuple[int, int] | None  # Node and local rank.
    names_from: tuple[int, int] | None  # Who tells joiners which names are free, if there are any.
    has_joiners: bool
    began_apart: bool  # Some have come to ranks that had begun, or come back to new ones.


def greatest(client: Client, name: str, lanes: np.ndarray) -> np.ndarray:
    """Has all ranks take part in a round of it; the greatest of each lane, in place."""
    client.run(name, lanes, Op.MAX)
    return lanes


def _place_in(lane: int) -> tuple[int, int] | None:
    """The lowest place that ranks have named, as node and local rank."""
    place = U64_MAX - lane
    return (place >> 32, place & 0xFFFFFFFF) if lane else None


class Agreement:
    """One rank's: the view that it follows, and its part in agreeing on the next one."""

    def __init__(self, client: Client, view: View) -> None:
        self.view = view
        self.giving = Giving(client)
        self.has_agreed = False
        self._client = client
        self._followed = 0

    @property
    def rounds(self) -> list[tuple[str, int]]:
        """Names, and how many numbers each has."""
        return [(_NAME, _LANES)]

    def agree(self, said: Said, replay: Callable[[], Replay | None]) -> Agreed:
        """Returns when all ranks have named one view. `replay`: of the State, if there is one."""
        client, connection = self._client, self._client.connection
        while True:
            found, members = connection.membership()
            lanes: np.ndarray = np.zeros(_LANES, np.uint64)
            lanes[0], lanes[1] = found.epoch, U64_MAX - int(found.epoch)
            lanes[2] = int(said.wants_state)
            # Whether ranks' numbers are not those of the job's beginning any more.
            has_suffix = connection.view_suffix != ""
            lanes[4] = int(said.is_joiner or has_suffix or self.view.epoch != found.epoch)
            newer = view_of(found, members)
            if not said.is_joiner:
                # The lowest place counts.
                place = U64_MAX - self._place(newer, int(found.number))
                lanes[6], lanes[7] = place, len(client.tensors.free_names)
                if said.holds_state:
                    lanes[3] = place
                    if said.begins_anew:  # Others may have been started just now.
                        lanes[5] = place
            lanes[8] = int(said.is_joiner)
            lanes[9 if client.names_watcher is not None else 10] = 1
            lanes[11] = int(said.has_caught_up)
            # Numbers stay where nothing but standbys has come or gone, if all have the same.
            beside = newer.standbys != self.view.standbys
            stays = beside and not said.is_joiner and newer.in_steps == self.view.in_steps
            lanes[12] = int(not stays)
            lanes[13], lanes[14] = self._followed, U64_MAX - self._followed
            greatest(client, _NAME, lanes)
            if int(lanes[0]) == U64_MAX - int(lanes[1]):
                break
        stays = not lanes[12] and int(lanes[13]) == U64_MAX - int(lanes[14])
        changed = bool(lanes[4]) and not stays
        self._follow(newer, int(found.number), changed, replay)
        if changed and not lanes[10] and client.names_watcher is not None:
            client.names_watcher.agree()
        self.has_agreed = True
        return Agreed(
            int(found.epoch),
            bool(lanes[2]),
            bool(lanes[11]),
            _place_in(int(lanes[5] or lanes[3])),
            _place_in(int(lanes[6])) if lanes[7] and lanes[8] else None,
            bool(lanes[8]),
            bool(lanes[8] or lanes[5]),
        )

    def _place(self, view: View, number: int) -> int:
        """This rank's node and local rank, as one number."""
        return (view.member_of(number).node << 32) | self._client.local_rank

    def _follow(
        self, view: View, number: int, changed: bool, replay: Callable[[], Replay | None]
    ) -> None:
        with self.giving.numbers:
            if changed and self._followed != view.epoch:
                self._client.follow(view.epoch)
                self._followed = view.epoch
            elif view.standbys != self.view.standbys:
                self._client.connection.follow(view.epoch)  # That their ranks can be named.
            self.view = view
            if view.standbys or self.giving.has_lines:
                own = (view.member_of(number).node, self._client.local_rank)
                self.giving.follow(view, own, replay())

    def listeners(self) -> list[int]:
        """The ranks that have a line to this rank's node, which has entered. All ask so together."""
        view, members = self.view, len(self.view.members)
        words = -(-members // _WORD_BITS)
        lanes: np.ndarray = np.zeros(view.size * words, np.uint64)
        for place, listens in enumerate(self.giving.listens_to(view)):
            word, bit = divmod(place, _WORD_BITS)
            lanes[view.rank * words + word] |= np.uint64(int(listens) << bit)
        greatest(self._client, f"talweg.listeners{self._client.connection.view_suffix}", lanes)
        word, bit = divmod(view.members.index(view.member_of(view.rank)), _WORD_BITS)
        return [
            rank
            for rank in range(view.size)
            if int(lanes[rank * words + word]) >> bit & 1 and rank != view.rank
        ]

    def tell_free_names(self, agreed: Agreed) -> None:
        """Joiners hear which names mean no one tensor any more; Aborted when the teller is lost."""
        if agreed.names_from is None:
            return
        root = self.view.rank_at(*agreed.names_from)
        names = json.dumps(self._client.tensors.free_names).encode()
        name = f"talweg.names.{root}"
        told = objects.broadcast_bytes(self._client, objects.Payload(names), root, name)
        self._client.tensors.free(*json.loads(told.tobytes()))
