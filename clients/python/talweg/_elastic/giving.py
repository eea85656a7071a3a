# SPDX-License-Identifier: Apache-2.0
"""A survivor gives its state to standbys, beside its steps: docs/elastic.md.

The rank's own thread decides at the ends of steps. A thread for each standby, which is there only
while the standby is one, copies the state while the next step computes, and sends. When the
optimizer is about to change the state, the rank's own thread copies what is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from talweg._elastic import stripes
from talweg._elastic.catch_up import (
    CopySnapshot,
    Drop,
    EndLine,
    Giver,
    GiverEffect,
    GiverState,
    Place,
    SendEntry,
    SendRest,
    SendUnable,
)
from talweg._elastic.catch_up_lines import (
    ASKS_NOT,
    CHUNK_BYTES,
    Entry,
    Message,
    Rest,
    Rounds,
    Snapshot,
    Unable,
    Writer,
    line_name,
)
from talweg._elastic.pace import Pace
from talweg._elastic.replay import Recording, Replay
from talweg.errors import TalwegError

if TYPE_CHECKING:
    from talweg._client import Client
    from talweg._elastic.views import Member, View

# The log may be as large as a rank's stripe of the state, or this, if that is more.
_LOG_BYTES_MIN = 64 << 20
_LOOK_S = 0.1
# A stripe may be so much longer than expected.
_SPARE_BYTES = 1 << 20
_SLICE_BYTES = 1 << 20


def places_of(view: View) -> dict[int, Place]:
    """Returns node and local rank of all ranks that take part in steps, by their numbers."""
    return {
        number: (member.node, local_rank)
        for member in view.members
        if not member.standby
        for local_rank, number in enumerate(member.ranks)
    }


@dataclass
class _Queued:
    message: Message
    nbytes: int


class _Outbox:
    """The messages to send. The rank's thread adds and drops, and the sending thread takes."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._queue: deque[_Queued | None] = deque()
        self._drops = 0
        self._waiting_bytes = 0
        self._newest = 0  # The last step that was added.
        self.is_over = False  # Nothing is sent any more, and what is being sent is dropped.
        self._is_ended = False  # Nothing is added any more.

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def add(self, message: Message, nbytes: int, is_last: bool = False) -> None:
        with self._condition:
            if isinstance(message, (Entry, Snapshot)):
                self._newest = message.step
            self._queue.append(_Queued(message, nbytes))
            self._waiting_bytes += nbytes
            if is_last:
                self._queue.append(None)
            self._condition.notify()

    def drop(self, is_over: bool = False, is_ended: bool = False) -> None:
        """Drops what has not left. `is_over`: nothing is sent any more. `is_ended`: nothing
        follows.
        """
        with self._condition:
            self._queue.clear()
            self._waiting_bytes = 0
            self._drops += 1
            self.is_over = self.is_over or is_over
            self._is_ended = self._is_ended or is_ended
            self._condition.notify()

    def _has_dropped(self, drops: int) -> bool:
        return self._drops != drops

    def send_all(self, writer: Writer) -> bool:
        """Returns True after the last message, or if none follows; False if nothing may be sent."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self.is_over or self._is_ended)
                if self.is_over:
                    return False
                if not self._queue:
                    return True
                queued, drops = self._queue.popleft(), self._drops
                newest, has_next = self._newest, bool(self._queue and self._queue[0])
            if queued is None:
                return True
            message = queued.message
            if isinstance(message, Entry):
                message = replace(message, newest=newest)
            if isinstance(message, Snapshot) and message.copying is not None:
                while not message.copying.is_over:
                    message.copying.copy_some()
                message.copying.finish()
            writer.send(message, partial(self._has_dropped, drops), has_next)
            with self._condition:
                if self._drops == drops:
                    self._waiting_bytes -= queued.nbytes


class _Given:
    """A survivor's part that gives its state to one standby."""

    def __init__(
        self,
        client: Client,
        replay: Replay | None,
        own: Place,
        standby: Member,
        view: View,
        numbers: threading.Lock,
    ) -> None:
        """`numbers` is held by whoever gives ranks other numbers, or names ranks by them."""
        self.standby = standby
        self._own = own
        self.giver = Giver(own)
        self._replay = replay
        self._recording: Recording | None = None
        self._copying: stripes.Copying | None = None
        self._log_bytes_max = _LOG_BYTES_MIN
        self._outbox = _Outbox()
        # The memory for the stripe. The thread makes the kernel give its pages in advance.
        self._room: np.ndarray | None = None
        self._room_bytes = 0
        if replay is not None:
            with contextlib.suppress(Exception):  # The error comes again when the stripe is copied.
                if replay.problem() is None:
                    count = sum(len(each.ranks) for each in view.in_steps)
                    self._room_bytes = replay.nbytes() // count
        self._has_heard = False
        self._is_broken = False
        self._connection, self._numbers = client.connection, numbers
        self._ranks = [view.rank_at(*own), *standby.ranks]
        member = view.member_of(self._ranks[0])
        self._name = line_name(
            (standby.node, standby.incarnation), (member.node, member.incarnation), own[1]
        )
        asks, name = standby.ranks[0], f"{self._name}.ask"
        self._ask = Rounds(self._connection, name, asks, self._ranks, 8, False, 1, is_line=False)
        self._thread = threading.Thread(target=self._run, name="talweg-giver", daemon=True)
        self._thread.start()

    # ----- Called by the sending thread -----

    def _declare_line(self, pace: Pace) -> Rounds | None:
        """Declares the line's tensors, beside the steps, once the standby has asked. None: it is
        over.
        """
        with self._numbers:
            if self._outbox.is_over:
                return None
            root = self._ranks[0]
            return Rounds(
                self._connection, self._name, root, self._ranks, CHUNK_BYTES, True, pace=pace
            )

    def _run(self) -> None:
        outbox = self._outbox
        try:
            self._room = _populated(self._room_bytes, lambda: outbox.is_over)
            while (asked := self._ask.receive(time.monotonic() + _LOOK_S)) is None:
                if outbox.is_over:
                    return
            if asked[0] == ASKS_NOT:
                return
            pace = Pace(CHUNK_BYTES)
            rounds = self._declare_line(pace)
            if rounds is None:
                return
            self._has_heard = True
            writer = Writer(rounds, pace=pace)
            if outbox.send_all(writer) and writer.end(lambda: outbox.is_over):
                rounds.finish(lambda: outbox.is_over)
        except TalwegError:  # A rank of the standby is gone, or this one's agent.
            self._is_broken = True

    # ----- Called by the rank's thread -----

    def follow(self, view: View) -> None:
        """Names ranks by the numbers of this view from now on. The caller holds `numbers`."""
        standbys = [
            each
            for each in view.members
            if (each.node, each.incarnation) == (self.standby.node, self.standby.incarnation)
        ]
        if not standbys:
            return self.end()
        self._ranks = [view.rank_at(*self._own), *standbys[0].ranks]

    def look(self) -> bool:
        """Handles what the sending thread has heard. Returns whether asked survivors must wait."""
        if self._is_broken:
            self._perform(self.giver.on_lost())
        elif self._has_heard and self.giver.state is GiverState.LISTENING:
            problem = "it has no State with an optimizer"
            if self._replay is not None:
                problem = self._replay.problem() or ""
            self._perform(self.giver.on_ask(problem or None))
        return self.giver.holds_others

    def on_boundary(self, step: int, survivors: Sequence[Place], may_begin: bool) -> None:
        self._perform(self.giver.on_boundary(step, survivors, may_begin))
        self._perform(self.giver.on_backlog(self._outbox.waiting_bytes, self._log_bytes_max))

    def on_full_member(self, step: int, survivors: Sequence[Place]) -> None:
        self._perform(self.giver.on_full_member(step, survivors))

    def end(self) -> None:
        """Ends the sending: nobody takes anything any more."""
        self._perform(self.giver.on_lost())

    def end_line(self) -> None:
        """Ends the line, as the standby does, which takes part in steps now."""
        self._perform(self.giver.on_entered())

    @property
    def is_sending(self) -> bool:
        """Whether the sending thread still runs."""
        return self._thread.is_alive()

    def _perform(self, effects: Sequence[GiverEffect]) -> None:
        for effect in effects:
            try:
                self._perform_one(effect)
            except Exception as failure:  # A user's class may raise any error.
                self._perform(self.giver.on_failure(f"{type(failure).__name__}: {failure}"))

    def _perform_one(self, effect: GiverEffect) -> None:
        outbox, replay = self._outbox, self._replay
        if isinstance(effect, CopySnapshot):
            room = self._room
            outbox.drop()
            self._stop_recording()
            assert replay is not None
            header, buffers, steady = replay.snapshot()
            sizes = tuple(buffer.size for buffer in buffers)
            begin, end = stripes.stripe_of(sum(sizes), effect.place, effect.count)
            copying = self._copying = stripes.Copying(buffers, begin, end, room, steady)
            stripe = copying.stripe
            if effect.place > 0:
                header = b""
            self._log_bytes_max = stripe.size + max(stripe.size, _LOG_BYTES_MIN)
            self._recording = replay.record(effect.place, effect.count, copying.finish)
            snapshot = Snapshot(
                effect.step, effect.place, effect.count, header, sizes, stripe, copying
            )
            outbox.add(snapshot, stripe.size)
        elif isinstance(effect, SendEntry):
            assert self._recording is not None
            calls = self._recording.take()
            if self._recording.problem is not None:
                self._perform(self.giver.on_failure(self._recording.problem))
                return
            nbytes = sum(call.stripe.size + len(call.header) for call in calls)
            outbox.add(Entry(effect.step, effect.step, calls), nbytes)
        elif isinstance(effect, SendRest):
            payload = b""
            if effect.is_first:
                assert replay is not None
                payload = b"".join(replay.rest())
            if self._copying is not None:
                self._copying.finish()
            self._stop_recording()
            outbox.add(Rest(effect.step, memoryview(payload)), len(payload), is_last=True)
        elif isinstance(effect, SendUnable):
            outbox.drop()
            self._stop_recording()
            outbox.add(Unable(effect.reason), 0, is_last=True)
        elif isinstance(effect, Drop):
            outbox.drop(is_over=True)
            self._stop_recording()
        elif isinstance(effect, EndLine):
            outbox.drop(is_ended=True)
            self._stop_recording()

    def _stop_recording(self) -> None:
        self._room = None
        if self._copying is not None:
            self._copying.drop()
            self._copying = None
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    def join(self) -> None:
        """Returns when nothing is sent any more."""
        self._thread.join()


def _populated(nbytes: int, is_over: Callable[[], bool]) -> np.ndarray:
    """Returns memory with all its pages: copying there takes a fraction of the time."""
    room: np.ndarray = np.empty(nbytes + _SPARE_BYTES, np.uint8)
    for begin in range(0, room.size, _SLICE_BYTES):
        if is_over():
            break
        # A call without the interpreter's lock.
        ctypes.memset(int(room[begin:].ctypes.data), 0, min(_SLICE_BYTES, room.size - begin))
    return room


class Giving:
    """A survivor's part that gives its state to all standbys. The rank's own thread calls it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._given: list[_Given] = []  # In the order of the standbys of the view that is followed.
        self._ended: list[_Given] = []  # Those whose last messages may still be on their way.
        self._is_to_be_closed = False
        # Held while ranks get other numbers: threads name ranks by them.
        self.numbers = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether there is a standby that it may give to."""
        return bool(self._given)

    @property
    def has_lines(self) -> bool:
        """Whether a line may be declared or in use."""
        return bool(self._given or self._ended)

    def follow(self, view: View, own: Place, replay: Replay | None) -> None:
        """Follows this view, as all survivors do. The caller holds `numbers`."""
        for line in [*self._given, *self._ended]:
            line.follow(view)
        known = {(each.standby.node, each.standby.incarnation): each for each in self._given}
        self._given = []
        for member in view.members:
            given = known.pop((member.node, member.incarnation), None)
            if not member.standby:
                if given is not None:  # It takes part in steps, and has got what it waited for.
                    given.end_line()
                    self._ended.append(given)
                continue
            if given is None:
                if not self._is_to_be_closed:
                    self._is_to_be_closed = True
                    self._client.call_before_closing(self._close)
                try:
                    given = _Given(self._client, replay, own, member, view, self.numbers)
                except TalwegError:  # The node is gone already, and a newer view follows.
                    continue
            self._given.append(given)
        for given in known.values():
            given.end()
            self._ended.append(given)
        self._ended = [given for given in self._ended if given.is_sending]

    def listens_to(self, view: View) -> list[bool]:
        """Returns for each member of the followed view whether it has entered and its line is not
        over.
        """
        lines = {
            (each.standby.node, each.standby.incarnation) for each in self._ended if each.is_sending
        }
        return [(each.node, each.incarnation) in lines for each in view.members]

    def look(self, view: View) -> list[int]:
        """Returns 1 for each standby of the view whose asked survivors may not begin, else 0."""
        holds = {each.standby.node: each.look() for each in self._given}
        return [int(holds.get(each.node, False)) for each in view.standbys]

    def on_boundary(
        self, step: int, view: View, ended: Sequence[bool], holds: Sequence[int]
    ) -> None:
        """Tells the givers that a step has ended.

        `ended` says by rank who has ended it. `holds` has the greatest look() of all ranks for each
        standby.
        """
        places = places_of(view)
        survivors = [place for number, place in places.items() if ended[number]]
        standbys = [each.node for each in view.standbys]
        held = {node for node, any_holds in zip(standbys, holds) if any_holds}
        for given in self._given:
            given.on_boundary(step, survivors, given.standby.node not in held)

    def on_view(self, step: int, view: View) -> None:
        """Notes that a newer view came after `step`, whether it is followed or not."""
        members = {(each.node, each.incarnation): each for each in view.members}
        survivors = list(places_of(view).values())
        for given in self._given:
            member = members.get((given.standby.node, given.standby.incarnation))
            if member is None:
                given.end()
            elif not member.standby:
                given.on_full_member(step, survivors)

    def _close(self) -> None:
        for given in [*self._given, *self._ended]:
            given.end()
            given.join()
