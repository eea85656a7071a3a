# SPDX-License-Identifier: Apache-2.0
"""A standby's rank takes over the survivors' state, beside their steps: docs/elastic.md."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from talweg._declaration import Declaration, DType, Op
from talweg._elastic import stripes
from talweg._elastic.catch_up import (
    Apply,
    Load,
    Place,
    SayReady,
    Taker,
    TakerEffect,
    TakeRest,
    TakerState,
    TakeWhole,
)
from talweg._elastic.catch_up_lines import (
    ASKS,
    ASKS_NOT,
    CHUNK_BYTES,
    Entry,
    Message,
    Reader,
    Rest,
    Rounds,
    Snapshot,
    line_name,
)
from talweg._elastic.replay import Call, Replay
from talweg._elastic.views import Member, View, view_of
from talweg.errors import Aborted, TalwegError

if TYPE_CHECKING:
    from talweg._client import Client

# How many seconds a rank waits for one line, before it looks at the others and at the view.
_LOOK_S = 0.005


class _Line:
    """The line from one survivor's rank, which sends when this node has asked it."""

    def __init__(self, client: Client, own: Member, survivor: Member, local_rank: int) -> None:
        self._connection = client.connection
        self._number = survivor.ranks[local_rank]
        self._name = line_name(
            (own.node, own.incarnation), (survivor.node, survivor.incarnation), local_rank
        )
        self._ranks = [self._number, *own.ranks]
        self.tells = client.local_rank == 0  # The node's others hear what it tells the survivor.
        self._ask = Rounds(
            self._connection,
            f"{self._name}.ask",
            own.ranks[0],
            self._ranks,
            8,
            self.tells,
            lanes=1,
            is_line=False,
        )
        self._has_asked: bool | None = None  # None until it is known.
        self.rounds: Rounds | None = None
        self.snapshot: Snapshot | None = None
        self.entries: dict[int, Sequence[Call]] = {}
        self.rest: memoryview | None = None
        self.incarnation = survivor.incarnation

    def ask(self) -> None:
        """Asks the survivor to send. All ranks of this node call it."""
        self.open()
        self.tell(ASKS)

    def open(self) -> None:
        """Takes part in the line's rounds from now on."""
        self.rounds = Rounds(
            self._connection, self._name, self._number, self._ranks, CHUNK_BYTES, is_root=False
        )

    def tell(self, what: int) -> None:
        if self.tells:
            self._ask.send(np.full(8, what, np.uint8), lambda: False)
            self._has_asked = what == ASKS

    def end(self) -> bool:
        """Takes what comes, for some milliseconds. Returns whether the last chunk has come."""
        end = time.monotonic() + _LOOK_S
        if self._has_asked is None:
            told = self._ask.receive(end)
            if told is None:
                return False
            self._has_asked = told[0] == ASKS
        if self._has_asked and self.rounds is None:
            self.open()
        while self.rounds is not None and not self.rounds.is_over:
            if self.rounds.receive(end) is None:
                return False
        return self._ask.finish(lambda: True)


class _Meeting:
    """A round of the ranks of one node. To begin it a rank waits for nobody."""

    def __init__(self, client: Client, name: str, ranks: Sequence[int], told: bool) -> None:
        connection = self._connection = client.connection
        self._told: np.ndarray = np.array([told], np.uint64)
        kind = Declaration(DType.U64, 1, Op.MAX, 0, tuple(ranks))
        self._tensor = connection.declare_collective(
            name, int(kind.dtype), int(kind.op), kind.shares(), 0, sorted(ranks), 1, side=True
        )
        address = int(self._told.ctypes.data)
        self._round = connection.push_pull(self._tensor, address, 0)

    @property
    def is_over(self) -> bool:
        """Whether all ranks have come."""
        return self._connection.poll(self._tensor, self._round)

    def result(self) -> bool:
        """Waits until all ranks have come. Returns whether one of them has given `told` True."""
        address = int(self._told.ctypes.data)
        self._connection.wait(self._tensor, self._round, address, None)
        return bool(self._told[0])


class Taking:
    """The part of one rank of a standby that takes the state, until its node takes part in steps.

    What comes on a line comes to all ranks of the node, or to none. So a rank that needs nothing
    more goes on taking until the others need nothing more, either.
    """

    def __init__(self, client: Client, replay: Replay | None) -> None:
        self._client = client
        self._replay = replay
        self._taker = Taker([])
        self._lines: dict[Place, _Line] = {}
        # Survivors to which there is or was a line, with the incarnations of their agents.
        self._reached: set[tuple[Place, int]] = set()
        self._readers: dict[Place, Reader] = {}
        self._epoch = 0
        self._is_full = False
        self._attempt = 0  # The step of the newest snapshot that has begun to come,
        self._buffers: list[np.ndarray] = []  # and where it comes to.
        self._own: Member | None = None
        self._leaving: _Meeting | None = None
        # Why the rank must take the whole state; None if it need not.
        self.reason: str | None = None

    def run(self) -> bool:
        """Waits until the node takes part in steps. Returns whether this rank has caught up."""
        problem = "this State cannot be replayed"
        if self._replay is not None:
            problem = self._replay.problem() or ""
        self._find_own()
        if self._has_others and self._meet("begin", bool(problem)).result():
            problem = problem or "another rank of this node cannot"
        if problem:
            self._perform(self._taker.on_failure(problem))
        takes = not problem
        while True:
            self._look(takes)
            if self._is_over and self._is_full and self._may_leave():
                return self._taker.state is TakerState.CAUGHT_UP
            if not self._lines or (self._is_over and not self._has_others):
                self._client.connection.check_health()
                time.sleep(_LOOK_S)
            else:
                self._take()

    @property
    def _is_over(self) -> bool:
        return self._taker.state in (TakerState.CAUGHT_UP, TakerState.WHOLE)

    @property
    def _has_others(self) -> bool:
        """Whether this node has other ranks."""
        assert self._own is not None
        return len(self._own.ranks) > 1

    def _meet(self, what: str, told: bool) -> _Meeting:
        own = self._own
        assert own is not None
        name = f"talweg.catch_up.{what}.{own.node}.{own.incarnation}"
        return _Meeting(self._client, name, own.ranks, told)

    def _may_leave(self) -> bool:
        """Whether no rank of this node waits for anything on a line any more."""
        if not self._has_others:
            return True
        if self._leaving is None:
            self._leaving = self._meet("leave", False)
        if not self._leaving.is_over:
            return False
        self._leaving.result()
        return True

    def _find_own(self) -> tuple[bool, int, View]:
        """Follows the newest view. Returns whether the node is a standby in it, after how many
        steps it entered, and the view.
        """
        connection = self._client.connection
        found, members = connection.membership()
        view = view_of(found, members)
        connection.follow(view.epoch)
        self._own = view.member_of(int(found.number))
        return bool(found.standby), int(found.steps_base), view

    def _look(self, takes: bool) -> None:
        """Follows the newest view. If this rank `takes` the state, asks each survivor in it."""
        if self._is_full or self._client.connection.newest_epoch() == self._epoch:
            return
        is_standby, step, view = self._find_own()
        self._epoch = view.epoch
        self._is_full = not is_standby
        if takes and (self._has_others or self._taker.state is not TakerState.WHOLE):
            self._reach(view)
        if self._is_full:
            self._perform(self._taker.on_full_member(step))

    def _reach(self, view: View) -> None:
        own = self._own
        assert own is not None
        there = {each.node: each for each in view.in_steps if each is not own}
        for place, line in list(self._lines.items()):
            member = there.get(place[0])
            if member is None or member.incarnation != line.incarnation:
                self._lose(place)
        if self._is_full:
            return
        for node, member in there.items():
            for local_rank in range(len(member.ranks)):
                place = (node, local_rank)
                if place in self._lines:
                    continue
                try:
                    line = _Line(self._client, own, member, local_rank)
                    line.ask()
                except Aborted:  # The survivor is gone already, and a newer view follows.
                    continue
                except TalwegError as failure:
                    return self._perform(self._taker.on_failure(str(failure)))
                self._lines[place] = line
                self._reached.add((place, line.incarnation))
                self._readers[place] = Reader(partial(self._find_room, place))
                self._taker.on_line(place)

    def _lose(self, place: Place) -> None:
        del self._lines[place], self._readers[place]
        if place in self._taker.lines:
            self._perform(self._taker.on_line_lost(place))

    def _take(self) -> None:
        """Takes what has come, or comes soon."""
        lines = {place: line.rounds for place, line in self._lines.items() if line.rounds}
        ready = [place for place, rounds in lines.items() if rounds.is_ready]
        open_ = [place for place, rounds in lines.items() if not rounds.is_over]
        for place in ready or open_[:1] or list(lines)[:1]:
            if place not in self._lines:
                continue
            try:
                chunk = lines[place].receive(time.monotonic() + _LOOK_S)
            except Aborted:
                self._lose(place)
                continue
            if chunk is not None:
                for message in self._readers[place].take(chunk):
                    self._on_message(place, message)

    def _find_room(self, place: Place, begun: Snapshot, nbytes: int) -> Sequence[np.ndarray]:
        """Returns where a stripe goes. All stripes of an attempt go into the same buffers."""
        if self._is_over:
            return [np.empty(nbytes, np.uint8)]
        line = self._lines[place]
        line.snapshot, line.entries = begun, {}
        layout = hashlib.sha256(repr(begun.sizes).encode()).digest()
        stripe = (begun.place, begun.count)
        self._perform(self._taker.on_snapshot(place, begun.step, stripe, layout))
        if begun.step > self._attempt:
            self._attempt = begun.step
            self._buffers = [np.empty(size, np.uint8) for size in begun.sizes]
        begin, end = stripes.stripe_of(sum(begun.sizes), *stripe)
        sizes = [buffer.size for buffer in self._buffers]
        if (begun.step, list(begun.sizes), nbytes) != (self._attempt, sizes, end - begin):
            return [np.empty(nbytes, np.uint8)]  # The stripe does not fit into them.
        return list(stripes.parts_of(self._buffers, begin, end))

    def _on_message(self, place: Place, message: Message) -> None:
        if self._is_over:
            return
        line, taker = self._lines[place], self._taker
        if isinstance(message, Snapshot):
            self._perform(taker.on_stripe(place))
        elif isinstance(message, Entry):
            line.entries[message.step] = message.calls
            self._perform(taker.on_entry(place, message.step, message.newest))
        elif isinstance(message, Rest):
            line.rest = message.payload
            self._perform(taker.on_rest(place, message.step))
        else:
            self._perform(taker.on_unable(place, message.reason))

    def _perform(self, effects: Sequence[TakerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SayReady):
                self._client.connection.ready()
                continue
            if isinstance(effect, TakeWhole):
                self.reason = effect.reason
                for line in self._lines.values():
                    line.snapshot, line.entries = None, {}
                self._buffers = []
                continue
            try:
                self._perform_one(effect)
            except TalwegError as failure:
                return self._perform(self._taker.on_failure(str(failure)))
            except Exception as failure:  # A user's optimizer may raise any error.
                reason = f"{type(failure).__name__}: {failure}"
                return self._perform(self._taker.on_failure(reason))

    def _givers(self) -> list[_Line]:
        """Returns the lines of the newest attempt, in the order of their stripes."""
        lines = [line for line in self._lines.values() if line.snapshot is not None]
        newest = max(_step_of(line) for line in lines)
        given = [line for line in lines if _step_of(line) == newest]
        return sorted(given, key=lambda line: line.snapshot.place if line.snapshot else 0)

    def _perform_one(self, effect: TakerEffect) -> None:
        assert self._replay is not None
        givers = self._givers()
        first = givers[0].snapshot
        assert first is not None
        if isinstance(effect, Load):
            buffers, self._buffers = self._buffers, []
            self._replay.load(first.header, buffers)
        elif isinstance(effect, Apply):
            calls = [line.entries.pop(effect.step) for line in givers]
            if len({len(each) for each in calls}) > 1:
                raise ValueError("survivors have called the optimizer unequally often in one step")
            for parts in zip(*calls):
                data = np.concatenate([each.stripe for each in parts])
                if data.size != parts[0].total:
                    raise ValueError("survivors have applied gradients of different sizes")
                self._replay.apply(parts[0].header, data)
        elif isinstance(effect, TakeRest):
            rest = givers[0].rest
            assert rest is not None
            self._replay.load_rest(rest)

    def end_lines(self, view: View, listeners: Collection[int]) -> None:
        """Returns when no round is open between this node and a survivor. All ranks follow `view`,
        and `listeners` have a line to this node.
        """
        own = view.member_of(view.rank)
        for number in listeners:
            member = view.member_of(number)
            place = (member.node, number - member.ranks[0])
            if (place, member.incarnation) in self._reached:
                continue
            self._reached.add((place, member.incarnation))
            with contextlib.suppress(TalwegError):  # The survivor is gone already.
                line = self._lines[place] = _Line(self._client, own, member, place[1])
                line.tell(ASKS_NOT)
        while self._lines:
            for place, line in list(self._lines.items()):
                with contextlib.suppress(TalwegError):  # The survivor is gone.
                    if not line.end():
                        continue
                del self._lines[place]
            self._client.connection.check_health()


def _step_of(line: _Line) -> int:
    return line.snapshot.step if line.snapshot is not None else 0
