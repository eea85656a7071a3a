# SPDX-License-Identifier: Apache-2.0
"""The round in which all ranks name one view, and take their numbers from it: docs/elastic.md.

`talweg.agree` is a round of unsigned numbers, of which the greatest counts. Each rank says which
view it knows, and what it has and needs of the State, until all say the same view.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from talweg._collectives import objects
from talweg._declaration import Op
from talweg._elastic.giving import Giving
from talweg._elastic.lanes import (
    U64_MAX,
    EnteredLanes,
    ListenerLanes,
    are_alike,
    greatest,
    tell_alike,
)
from talweg._elastic.replay import Replay
from talweg._elastic.views import View, only_standbys_differ, view_of

if TYPE_CHECKING:
    from talweg._client import Client

_NAME = "talweg.agree"


class _Lane(IntEnum):
    """The numbers that ranks say. A place is told as the largest number minus the place, so that
    the lowest place counts.
    """

    EPOCH = 0  # The newest view that the rank knows; two lanes.
    WANTS_STATE = 2
    RENUMBERED = 3  # Ranks' numbers differ, or will differ, from those of the job's beginning.
    IS_JOINER = 4
    MEMBER = 5  # The place of a rank that is no joiner.
    FREE_NAMES = 6  # How many names no longer mean one tensor at such a rank.
    HOLDER = 7  # The place of a rank that also holds the State.
    HOLDER_ANEW = 8  # The same, if that rank begins anew: others may have just been started.
    WATCHES_NO_NAMES = 9
    HAS_CAUGHT_UP = 10
    MOVES = 11  # Something else has changed for the rank than which standbys there are.
    FOLLOWED = 12  # The view that its numbers are of; two lanes.


_LANES = 14


@dataclass(frozen=True)
class Said:
    """What this rank says about itself."""

    is_joiner: bool
    # Whether the rank has been attached again, to a job that has begun without it or by it.
    begins_anew: bool
    holds_state: bool  # Whether the rank has a State. A joiner's lacks the others' values.
    wants_state: bool
    has_caught_up: bool


@dataclass(frozen=True)
class Agreed:
    """What all ranks have agreed on."""

    epoch: int
    wanted: bool  # Whether some rank needs the state.
    caught_up: bool  # Whether some rank has got the state beside the steps.
    source: tuple[int, int] | None  # The rank that gives the state, as node and local rank.
    names_from: tuple[int, int] | None  # The rank that tells joiners which names are free, if any.
    has_joiners: bool
    began_apart: bool  # Whether ranks have begun at different times.


def _place_in(lane: int) -> tuple[int, int] | None:
    """Returns the lowest place that ranks have named, as node and local rank."""
    place = U64_MAX - lane
    return (place >> 32, place & 0xFFFFFFFF) if lane else None


class Agreement:
    """The agreement of one rank: the view that it follows, and its part in agreeing on the next."""

    def __init__(self, client: Client, view: View) -> None:
        self.view = view
        self.giving = Giving(client)
        self.has_agreed = False
        self._client = client
        self._followed = 0

    @property
    def rounds(self) -> list[tuple[str, int]]:
        """Returns the names of the rounds, and how many numbers each has."""
        return [(_NAME, _LANES)]

    def agree(self, said: Said, replay: Callable[[], Replay | None]) -> Agreed:
        """Returns when all ranks have named one view. `replay` is the State's, if there is one."""
        client, connection = self._client, self._client.connection
        while True:
            found, members = connection.membership()
            newer = view_of(found, members)
            lanes = greatest(client, _NAME, self._lanes(said, newer, int(found.number)))
            if are_alike(lanes, _Lane.EPOCH):
                break
        # Numbers stay if only standbys have come or gone, and all ranks have those of one view.
        stays = not lanes[_Lane.MOVES] and are_alike(lanes, _Lane.FOLLOWED)
        changed = bool(lanes[_Lane.RENUMBERED]) and not stays
        self._follow(newer, int(found.number), changed, replay)
        if changed and not lanes[_Lane.WATCHES_NO_NAMES] and client.names_watcher is not None:
            client.names_watcher.agree()
        self.has_agreed = True
        has_joiners, anew = bool(lanes[_Lane.IS_JOINER]), int(lanes[_Lane.HOLDER_ANEW])
        are_names_told = has_joiners and bool(lanes[_Lane.FREE_NAMES])
        return Agreed(
            newer.epoch,
            wanted=bool(lanes[_Lane.WANTS_STATE]),
            caught_up=bool(lanes[_Lane.HAS_CAUGHT_UP]),
            source=_place_in(anew or int(lanes[_Lane.HOLDER])),
            names_from=_place_in(int(lanes[_Lane.MEMBER])) if are_names_told else None,
            has_joiners=has_joiners,
            began_apart=has_joiners or bool(anew),
        )

    def _lanes(self, said: Said, newer: View, number: int) -> np.ndarray:
        """Returns the lanes of this rank, whose number in the `newer` view is `number`."""
        client, known = self._client, self.view
        lanes: np.ndarray = np.zeros(_LANES, np.uint64)
        tell_alike(lanes, _Lane.EPOCH, newer.epoch)
        tell_alike(lanes, _Lane.FOLLOWED, self._followed)
        has_suffix = client.connection.view_suffix != ""
        lanes[_Lane.RENUMBERED] = said.is_joiner or has_suffix or known.epoch != newer.epoch
        lanes[_Lane.MOVES] = said.is_joiner or not only_standbys_differ(known, newer)
        lanes[_Lane.IS_JOINER] = said.is_joiner
        lanes[_Lane.WANTS_STATE] = said.wants_state
        lanes[_Lane.HAS_CAUGHT_UP] = said.has_caught_up
        lanes[_Lane.WATCHES_NO_NAMES] = client.names_watcher is None
        if not said.is_joiner:
            place = U64_MAX - self._place(newer, number)
            lanes[_Lane.MEMBER] = place
            lanes[_Lane.FREE_NAMES] = len(client.tensors.free_names)
            if said.holds_state:
                lanes[_Lane.HOLDER] = place
                lanes[_Lane.HOLDER_ANEW] = place if said.begins_anew else 0
        return lanes

    def _place(self, view: View, number: int) -> int:
        """Returns this rank's node and local rank, as one number."""
        return (view.member_of(number).node << 32) | self._client.local_rank

    def _follow(
        self, view: View, number: int, changed: bool, replay: Callable[[], Replay | None]
    ) -> None:
        with self.giving.numbers:
            if changed and self._followed != view.epoch:
                self._client.follow(view.epoch)
                self._followed = view.epoch
            elif view.standbys != self.view.standbys:
                self._client.connection.follow(view.epoch)  # So that rounds can name its ranks.
            self.view = view
            if view.standbys or self.giving.has_lines:
                own = (view.member_of(number).node, self._client.local_rank)
                self.giving.follow(view, own, replay())

    def listeners(self, is_joiner: bool) -> list[int]:
        """Returns the ranks with a line to this rank's node, if it has entered. All ranks call."""
        client, view = self._client, self.view
        suffix = client.connection.view_suffix
        own = view.members.index(view.member_of(view.rank))
        entered = EnteredLanes(len(view.members))
        if is_joiner:
            entered.tell(own)
        greatest(client, f"talweg.entered{suffix}", entered.all, Op.BIT_OR)
        if not entered.places:  # Those that had entered are lost.
            return []
        # Its length depends on how many have entered.
        lanes = ListenerLanes(view.size, entered.places)
        lanes.tell(view.rank, self.giving.listens_to(view))
        greatest(client, f"talweg.listeners{suffix}.{lanes.all.size}", lanes.all)
        return [rank for rank in lanes.listeners(own) if rank != view.rank]

    def tell_free_names(self, agreed: Agreed) -> None:
        """Tells joiners which names no longer mean one tensor. Raises Aborted if the teller is
        lost.
        """
        if agreed.names_from is None:
            return
        root = self.view.rank_at(*agreed.names_from)
        names = json.dumps(self._client.tensors.free_names).encode()
        name = f"talweg.names.{root}"
        told = objects.broadcast_bytes(self._client, objects.Payload(names), root, name)
        self._client.tensors.free(*json.loads(told.tobytes()))
