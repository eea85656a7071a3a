# SPDX-License-Identifier: Apache-2.0
"""The members of a job in one epoch, and the changes from one epoch to another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from talweg._library import native
from talweg._library.native_structures import MEMBER_STANDBY
from talweg.errors import InvalidArgument


@dataclass(frozen=True)
class Member:
    """One node in the job: its number, the life of its agent, and the ranks on it."""

    node: int
    incarnation: int
    ranks: range
    # Whether it does not take part in steps yet. Its ranks have the numbers after all others.
    standby: bool = False


@dataclass(frozen=True)
class View:
    """The membership of one epoch, and this rank's number in it."""

    # 0: nodes have been lost since this rank got its number, which `members` does not fit.
    epoch: int
    members: tuple[Member, ...]
    rank: int
    size: int

    @property
    def in_steps(self) -> list[Member]:
        return [member for member in self.members if not member.standby]

    @property
    def standbys(self) -> list[Member]:
        return [member for member in self.members if member.standby]

    def member_of(self, number: int) -> Member:
        """Returns the member that has the rank with this number."""
        [member] = [each for each in self.members if number in each.ranks]
        return member

    @property
    def places(self) -> list[tuple[int, int]]:
        """The node and local rank of each rank in steps, by number. Not all, if epoch is 0."""
        listed = sorted(self.in_steps, key=lambda member: member.ranks.start)
        return [(each.node, local) for each in listed for local in range(len(each.ranks))]

    def rank_at(self, node: int, local_rank: int) -> int:
        [member] = [each for each in self.members if each.node == node]
        return member.ranks[local_rank]


@dataclass(frozen=True)
class Change:
    """The change that on_view_change() callbacks get: both views, and who is in only one."""

    before: View
    after: View
    lost: tuple[Member, ...]
    joined: tuple[Member, ...]


def view_of(found: native.Membership, members: Sequence[native.Member]) -> View:
    base, listed = 0, []
    for member in sorted(members, key=lambda member: member.flags & MEMBER_STANDBY):
        ranks = range(base, base + member.rank_count)
        standby = bool(member.flags & MEMBER_STANDBY)
        listed.append(Member(member.node, member.incarnation, ranks, standby))
        base = ranks.stop
    listed.sort(key=lambda member: member.node)
    return View(int(found.epoch), tuple(listed), int(found.rank), int(found.size))


def only_standbys_differ(before: View, after: View) -> bool:
    """Whether only standbys have come or gone, so that numbers may stay as they are."""
    has_number = before.epoch != 0
    return has_number and before.in_steps == after.in_steps and before.standbys != after.standbys


def change_between(before: View, after: View) -> Change | None:
    """Returns the change. None: the epoch is the same, or only standbys have come or gone."""
    if before.epoch == after.epoch or only_standbys_differ(before, after):
        return None
    were, are = before.in_steps, after.in_steps
    known = {(member.node, member.incarnation) for member in were}
    left = {(member.node, member.incarnation) for member in are}
    return Change(
        before,
        after,
        tuple(each for each in were if (each.node, each.incarnation) not in left),
        tuple(each for each in are if (each.node, each.incarnation) not in known),
    )


@dataclass(frozen=True)
class Least:
    """The fewest nodes and ranks with which a program trains. All ranks of a job have it alike."""

    nodes: int = 1
    ranks: int = 1

    @classmethod
    def told(cls) -> Least:
        """Returns the numbers that the launcher has told this process."""
        numbers = []
        for name in ("TALWEG_NODES_MIN", "TALWEG_RANKS_MIN"):
            text = os.environ.get(name, "") or "1"
            if not text.isdecimal():
                raise InvalidArgument(f"{name} is '{text}'; it must be a number")
            numbers.append(int(text))
        return cls(*numbers)

    def is_there(self, view: View) -> bool:
        return len(view.in_steps) >= self.nodes and view.size >= self.ranks
