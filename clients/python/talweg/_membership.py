# SPDX-License-Identifier: Apache-2.0
"""Who is in the job, as a program sees it: docs/elastic.md.

The membership changes at the ends of steps only, at the same one for all ranks. Rounds say what
ranks have to agree on: `talweg.step` at the end of each step, `talweg.agree` where something has
changed. Both are of unsigned numbers, of which the greatest counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from talweg import _native, _objects
from talweg._declaration import Op
from talweg._process_sets import ProcessSet
from talweg.errors import Aborted, InvalidArgument, Mismatch, NotSynchronized, Unsupported

if TYPE_CHECKING:
    from talweg._client import Client

_U64_MAX = 2**64 - 1
# How often ranks of which there are too few look for others.
_LOOK_S = 0.1

_AGREE = "talweg.agree"
_AGREED = 11

# Where the ranks' own digests begin in the round that compares them.
_DIGESTS = 4

_NOT_SYNCHRONIZED = (
    "this rank has joined a running job and has not got the state of those that were there before: "
    "call begin() of a talweg.State (or talweg.torch.Elastic) first, or talweg.enter() if the "
    "program takes over their state in a way of its own"
)


@dataclass(frozen=True)
class Member:
    """One node in the job: its number, the life of its agent, and the ranks on it."""

    node: int
    incarnation: int
    ranks: range


@dataclass(frozen=True)
class View:
    """The membership of one epoch."""

    epoch: int
    members: tuple[Member, ...]
    rank: int
    size: int


@dataclass(frozen=True)
class Change:
    """What on_view_change() callbacks are told: both views, and who is in one of them only."""

    before: View
    after: View
    lost: tuple[Member, ...]
    joined: tuple[Member, ...]


class StateHolder(Protocol):
    """What can be sent to a joiner: talweg.State."""

    def pack(self) -> Sequence[bytes | memoryview]: ...

    def unpack(self, payload: memoryview) -> None: ...

    def digest(self) -> int: ...

    @property
    def digest_steps(self) -> int:
        """At the end of every how many steps digests are compared; 0: of none but those that must
        be.
        """


@dataclass
class _Agreed:
    epoch: int
    wanted: bool  # Somebody needs the state.
    source: tuple[int, int] | None  # Node and local rank.
    names_from: tuple[int, int] | None  # Who tells joiners which names are free, if there are any.


def _place_in(lane: int) -> tuple[int, int] | None:
    """The lowest place that ranks have named, as node and local rank."""
    place = _U64_MAX - lane
    return (place >> 32, place & 0xFFFFFFFF) if lane else None


def _view(found: _native.Membership, members: Sequence[_native.Member]) -> View:
    base, listed = 0, []
    for member in members:
        ranks = range(base, base + member.rank_count)
        listed.append(Member(member.node, member.incarnation, ranks))
        base = ranks.stop
    return View(int(found.epoch), tuple(listed), int(found.rank), int(found.size))


@dataclass(frozen=True)
class Least:
    """With how few nodes and ranks a program trains; all ranks of a job are told the same."""

    nodes: int = 1
    ranks: int = 1

    @classmethod
    def told(cls) -> Least:
        """By the launcher."""
        numbers = []
        for name in ("TALWEG_NODES_MIN", "TALWEG_RANKS_MIN"):
            text = os.environ.get(name, "") or "1"
            if not text.isdecimal():
                raise InvalidArgument(f"{name} is '{text}'; it must be a number")
            numbers.append(int(text))
        return cls(*numbers)


@dataclass
class Membership:
    """One client's: it follows the views at the ends of steps."""

    client: Client
    changes: bool = False  # Nodes may come and go.
    is_joiner: bool = False
    view: View = field(init=False)
    callbacks: list[Callable[[Change], Any]] = field(default_factory=list)
    holder: StateHolder | None = None
    # Its agent was lost, and it has been attached again, and has not begun since then. The view is
    # what the program knew before.
    rejoined: View | None = None
    # What had changed when this rank began again.
    change: Change | None = None
    # The state has travelled: whether all go on from it alike shows in the next step.
    _is_first_step: bool = False
    _steps_base: int = 0
    _followed: int = 0
    _has_agreed: bool = False
    least: Least = field(default_factory=Least.told)

    def __post_init__(self) -> None:
        client = self.client
        everybody = (Member(0, 0, range(client.size)),)
        self.view = View(0, everybody, client.rank, client.size)
        if client.is_alone:
            return
        try:
            found, members = client.connection.membership()
        except Unsupported:  # An agent before there was such a thing.
            return
        self.changes = bool(found.changes)
        self._steps_base = int(found.steps_base)
        self.is_joiner = self._steps_base > 0
        self.view = _view(found, members)
        if (found.rank, found.size) != (client.rank, client.size):
            # Some are gone since this rank was told its number: it follows at its first step.
            self.view = View(0, everybody, client.rank, client.size)
        if self.is_joiner:
            client.connection.refusal = _NOT_SYNCHRONIZED

    def follow_on(self, lost: Membership) -> None:
        """This rank was in `lost` before its agent was lost."""
        self.callbacks = lost.callbacks
        # It may be lost again before it has begun.
        self.rejoined = lost.rejoined or lost.view

    @property
    def begins_anew(self) -> bool:
        """Whether this rank has been attached again, to a job that has begun without it or by it: no
        other rank can tell it how far the one before had come.
        """
        return self.rejoined is not None and not self.is_joiner

    @property
    def is_behind(self) -> bool:
        """Whether ranks have come or gone, which this rank has not been told of."""
        return self.changes and self.client.connection.newest_epoch() != self.view.epoch

    @property
    def _round_of_step(self) -> tuple[str, int]:
        """The round at the end of a step: its name, and how many numbers it has."""
        return f"talweg.step{self.client.connection.view_suffix}", 4 + self.client.size

    @property
    def rounds_of_steps(self) -> list[tuple[str, int]]:
        """What ranks call that end a step: names, and how many numbers each has."""
        return [(_AGREE, _AGREED), self._round_of_step] if self.changes else []

    # What ranks agree on.

    @contextlib.contextmanager
    def _unguarded(self) -> Iterator[None]:
        connection = self.client.connection
        refusal, connection.refusal = connection.refusal, None
        try:
            yield
        finally:
            connection.refusal = refusal

    def _greatest(self, name: str, lanes: np.ndarray) -> np.ndarray:
        self.client.run(name, lanes, Op.MAX)
        return lanes

    def _agree(self, wants_state: bool) -> _Agreed:
        """Has all ranks name one view, and take their numbers from it."""
        connection = self.client.connection
        while True:
            found, members = connection.membership()
            lanes: np.ndarray = np.zeros(_AGREED, np.uint64)
            lanes[0], lanes[1] = found.epoch, _U64_MAX - int(found.epoch)
            lanes[2] = int(wants_state)
            # Whether ranks' numbers are not those of the job's beginning any more.
            has_suffix = connection.view_suffix != ""
            lanes[4] = int(self.is_joiner or has_suffix or self.view.epoch != found.epoch)
            if not self.is_joiner:
                # The lowest place counts.
                place = _U64_MAX - self._place(found, members)
                lanes[6], lanes[7] = place, len(self.client.tensors.free_names)
                if self.holder is not None:
                    lanes[3] = place
                    if self.begins_anew:  # Others may have been started just now.
                        lanes[5] = place
            lanes[8] = int(self.is_joiner)
            lanes[9 if self.client.names_watcher is not None else 10] = 1
            self._greatest(_AGREE, lanes)
            if int(lanes[0]) == _U64_MAX - int(lanes[1]):
                break
        self._follow(found, members, changed=bool(lanes[4]))
        if lanes[4] and not lanes[10] and self.client.names_watcher is not None:
            self.client.names_watcher.agree()
        self._has_agreed = True
        return _Agreed(
            int(found.epoch),
            bool(lanes[2]),
            _place_in(int(lanes[5] or lanes[3])),
            _place_in(int(lanes[6])) if lanes[7] and lanes[8] else None,
        )

    def _place(self, found: _native.Membership, members: Sequence[_native.Member]) -> int:
        """This rank's node and local rank, as one number."""
        base = 0
        for member in members:
            base += member.rank_count
            if found.rank < base:
                return (int(member.node) << 32) | self.client.local_rank
        raise AssertionError("a view without this rank")

    def _rank_at(self, place: tuple[int, int]) -> int:
        node, local_rank = place
        [member] = [member for member in self.view.members if member.node == node]
        return member.ranks[local_rank]

    def _tell_free_names(self, agreed: _Agreed) -> None:
        """Joiners hear which names mean no one tensor any more; Aborted when the teller is lost."""
        if agreed.names_from is None:
            return
        root = self._rank_at(agreed.names_from)
        names = json.dumps(self.client.tensors.free_names).encode()
        name = f"talweg.names.{root}"
        told = _objects.broadcast_bytes(self.client, _objects.Payload(names), root, name)
        self.client.tensors.free(*json.loads(told.tobytes()))

    def _follow(
        self, found: _native.Membership, members: Sequence[_native.Member], changed: bool
    ) -> None:
        view = _view(found, members)
        if changed and self._followed != view.epoch:
            self.client.follow(view.epoch)
            self._followed = view.epoch
        self.view = view

    def _transfer(self, agreed: _Agreed) -> Exception | None:
        """The source's state to all that need it; the others have nothing to do with it.

        Returns why this rank could not give or get it: all hear of that before they go on.
        """
        assert agreed.source is not None
        root = self._rank_at(agreed.source)
        takers: np.ndarray = np.zeros(self.client.size, np.uint64)
        takers[self.client.rank] = self._needs_state
        self._greatest(f"talweg.takers{self.client.connection.view_suffix}", takers)
        group = {root, *(rank for rank, takes in enumerate(takers) if takes)}
        if self.client.rank not in group or len(group) == 1:
            return None
        is_source = root == self.client.rank
        payload = _objects.Payload()
        if is_source and self.holder is not None:
            payload = _objects.Payload.of(self.holder.pack)
        try:
            # A program may begin again in a view, and another rank be the source.
            name = f"talweg.state.{root}"
            data = _objects.broadcast_bytes(self.client, payload, root, name, ProcessSet(group))
        except (Aborted, InvalidArgument) as failure:
            return failure
        if self._needs_state and not is_source and self.holder is not None:
            self.holder.unpack(data.data)
        return None

    _needs_state = False

    def _resynchronize(self, wants_state: bool) -> None:
        self._needs_state = wants_state
        while True:
            agreed = self._agree(wants_state)
            try:
                self._tell_free_names(agreed)
            except Aborted:  # The teller is gone: from the next one, then.
                continue
            if not agreed.wanted:
                return
            if agreed.source is None:
                if not wants_state:
                    return  # The joiner ends; whoever is left goes on.
                raise NotSynchronized(
                    "this rank has joined a running job in which no rank holds a talweg.State: "
                    "give the program one, and call its begin() and end_step()"
                )
            try:
                self._compare(self._transfer(agreed))
            except Aborted:  # The source is gone: from the next one, then.
                continue
            self._needs_state = False
            self._is_first_step = True
            return

    def _digest(self) -> int:
        """The holder's, never 0."""
        assert self.holder is not None
        return (self.holder.digest() & (2**62 - 1)) | 2**62

    def _is_compared(self, step: int) -> bool:
        """Whether digests are compared at the end of that step."""
        if self.holder is None:
            return False
        every = self.holder.digest_steps
        return self._is_first_step or (every > 0 and step % every == 0)

    def _compare(self, failure: Exception | None = None) -> None:
        """Raises Mismatch unless what is to be equal is so at all ranks that hold state.

        Aborted, at all, if the state of the source has not reached one of them; InvalidArgument if
        it could not be sent.
        """
        has_digest = self.holder is not None and failure is None
        digest = self._digest() if has_digest else 0
        lanes: np.ndarray = np.zeros(_DIGESTS + self.client.size, np.uint64)
        lanes[2], lanes[3] = isinstance(failure, Aborted), isinstance(failure, InvalidArgument)
        if has_digest:
            lanes[0], lanes[1] = digest, _U64_MAX - digest
            lanes[_DIGESTS + self.client.rank] = digest
        self._greatest(f"talweg.digest{self.client.connection.view_suffix}", lanes)
        if lanes[3]:
            raise failure or InvalidArgument(
                "the State of the rank that was to give it to others cannot be pickled: see there why"
            )
        if lanes[2]:
            raise Aborted("the state has not reached all ranks that need it")
        if int(lanes[0]) == _U64_MAX - int(lanes[1]):
            return
        by_rank = {rank: int(lane) for rank, lane in enumerate(lanes[_DIGESTS:]) if lane}
        digests = list(by_rank.values())
        usual = max(digests, key=digests.count)  # The lowest rank's, where as many have others.
        others = [rank for rank, each in by_rank.items() if each != usual]
        raise Mismatch(
            f"ranks {others} hold other parameters than the others, of which the digest is "
            f"{usual:x}: end them, and start them again, so that they begin with the state of "
            "the others"
        )

    # What a program calls.

    def begin(self, holder: StateHolder) -> bool:
        """Has every rank start with the state of the lowest; whether this one is a joiner.

        A joiner gets it from the lowest of those that were there before.
        """
        was_joiner = self.is_joiner
        self.holder = holder
        if self.client.is_alone or (self.client.size == 1 and not self.changes):
            self._enter()
            return was_joiner
        with self._unguarded():
            self._resynchronize(wants_state=True)
        self._enter()
        self._await_others()
        return was_joiner

    def enter(self) -> None:
        """Enters a running job without a State."""
        if self.is_joiner:
            with self._unguarded():
                self._resynchronize(wants_state=False)
        if self.is_joiner or self.rejoined is not None:
            self._enter()

    def _enter(self) -> None:
        self.is_joiner = False
        self.client.connection.refusal = None
        before, self.rejoined = self.rejoined, None
        self.change = self._tell(before) if before is not None else None

    def end_step(
        self, commit: Callable[[tuple[bool, ...] | None], object] | None = None
    ) -> Change | None:
        """Ends the step; nodes come and go here. With a State, returns when there are enough ranks.

        `commit` is told by rank who has ended it (None: all), before anybody enters.
        """
        self.client.finish_step()
        before = self.view
        change = self._end_one_step(commit)
        if not self._await_others():
            return change
        return self._change_since(before)

    def _await_others(self) -> bool:
        """Ends empty steps, in which nodes may enter, while there are too few; whether there were."""
        were_few = False
        # Without a State a joiner's next rounds are the program's own, which others have to take
        # part in.
        while self.changes and self.holder is not None and self._are_few():
            were_few = True
            time.sleep(_LOOK_S)
            self._end_one_step(None)
        return were_few

    def _are_few(self) -> bool:
        return len(self.view.members) < self.least.nodes or self.view.size < self.least.ranks

    def _end_one_step(
        self, commit: Callable[[tuple[bool, ...] | None], object] | None
    ) -> Change | None:
        connection = self.client.connection
        step = self._steps_base + connection.steps_ended() + 1
        is_compared, self._is_first_step = self._is_compared(step), False
        if not self.changes:
            if is_compared and self.client.size > 1:
                self._compare()
            if commit is not None:
                commit(None)
            if not self.client.is_alone:
                connection.end_step()
            return None
        if self.is_joiner:
            raise NotSynchronized(_NOT_SYNCHRONIZED)
        if not self._has_agreed:
            self._resynchronize(wants_state=False)
        name, count = self._round_of_step
        lanes: np.ndarray = np.zeros(count, np.uint64)
        newest = connection.newest_epoch()
        lanes[0], lanes[1] = newest, _U64_MAX - newest
        if is_compared:
            digest = self._digest()
            lanes[2], lanes[3] = digest, _U64_MAX - digest
        lanes[4 + self.client.rank] = 1
        self._greatest(name, lanes)
        ended = tuple(bool(lane) for lane in lanes[4:])
        self._require_none_joined(ended, is_compared)
        if lanes[2] and int(lanes[2]) != _U64_MAX - int(lanes[3]):
            self._compare()  # Says who differs.
        if commit is not None:
            commit(ended)
        connection.end_step()
        steps = self._steps_base + connection.steps_ended()
        has_joiner = False
        if connection.newest_epoch() != self.view.epoch:
            found, _ = connection.membership()
            has_joiner = found.steps_entered == steps
        if int(lanes[0]) == self.view.epoch and not has_joiner:
            return None
        before = self.view
        self._resynchronize(wants_state=False)
        return self._tell(before)

    def _require_none_joined(self, ended: tuple[bool, ...], is_compared: bool) -> None:
        """InvalidArgument if a rank that is there has given zeros, as those do that have joined."""
        if all(ended):
            return
        missing = [rank for rank, has_ended in enumerate(ended) if not has_ended]
        # One that is gone is missing in a view that is newer, which the agent has by now.
        _, found = self.client.connection.membership()
        left = {(int(each.node), int(each.incarnation)) for each in found}
        members = [each for each in self.view.members if (each.node, each.incarnation) in left]
        joined = [rank for rank in missing if any(rank in each.ranks for each in members)]
        if joined:
            self._is_first_step = is_compared  # Then the next one is.
            raise InvalidArgument(
                f"end_step() (commit(), check_host_updates()): ranks {joined} are in hvd.join(), and "
                "end no steps: call it when all ranks have joined"
            )

    def _tell(self, before: View) -> Change | None:
        change = self._change_since(before)
        if change is not None:
            for callback in self.callbacks:
                callback(change)
        return change

    def _change_since(self, before: View) -> Change | None:
        after = self.view
        if before.epoch == after.epoch:
            return None
        known = {(member.node, member.incarnation) for member in before.members}
        left = {(member.node, member.incarnation) for member in after.members}
        return Change(
            before,
            after,
            tuple(each for each in before.members if (each.node, each.incarnation) not in left),
            tuple(each for each in after.members if (each.node, each.incarnation) not in known),
        )
