# SPDX-License-Identifier: Apache-2.0
"""How a joiner catches up beside the survivors' steps: docs/elastic.md has the tables.

A Giver is one survivor's part for one standby, a Taker is the joiner's. Both are pure: an event
goes in, effects come out. They know steps and lines, but no bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Union

# A node and one of its local ranks.
Place = tuple[int, int]

# How often survivors may begin: once, and again each time that one of them is lost.
ATTEMPTS_MAX = 3
# How many steps behind a joiner may be when it says that it is ready.
_BEHIND_MAX = 1


# ----- The survivor -----


@dataclass(frozen=True)
class CopySnapshot:
    """Copy this survivor's stripe of the state of `step`, log the later steps, and send both.

    Survivors that begin anew do so at a later step, which tells the attempts apart.
    """

    step: int
    place: int  # The stripe, of `count`.
    count: int


@dataclass(frozen=True)
class SendEntry:
    """Send this survivor's stripe of what the optimizer has applied in `step`."""

    step: int


@dataclass(frozen=True)
class SendRest:
    """Send all that is not replayed, as it is at the end of `step`. Nothing follows."""

    step: int
    is_first: bool  # The other survivors only send that nothing follows.


@dataclass(frozen=True)
class SendUnable:
    """Drop what is not sent yet, stop the log, and say why. Nothing follows."""

    reason: str


@dataclass(frozen=True)
class Drop:
    """Drop what is not sent yet, and stop the log, because nobody takes it any more."""


@dataclass(frozen=True)
class EndLine:
    """Drop what is not sent yet, and stop the log; then end the line, so that no round stays open."""


GiverEffect = Union[CopySnapshot, SendEntry, SendRest, SendUnable, Drop, EndLine]


class GiverState(Enum):
    """The states of one survivor, for one standby."""

    LISTENING = "the standby has not asked"
    ASKED = "it has; other survivors may not have heard it, or give already"
    GIVING = "the snapshot and the steps since are on their way"
    OVER = "nothing more is given"


class Giver:
    """A survivor's part: see the module. All survivors see the same boundaries and decide alike."""

    def __init__(self, own: Place) -> None:
        self.state = GiverState.LISTENING
        self._own = own
        self._givers: tuple[Place, ...] = ()
        self._attempts = 0

    @property
    def holds_others(self) -> bool:
        """Whether other asked survivors must wait: this one was not asked, or gives already."""
        return self.state in (GiverState.LISTENING, GiverState.GIVING)

    def on_ask(self, problem: str | None) -> Sequence[GiverEffect]:
        """The standby has asked. `problem` says why this survivor's state cannot be replayed."""
        if self.state is not GiverState.LISTENING:
            return ()
        if problem is not None:
            return self._give_up(problem)
        self.state = GiverState.ASKED
        return ()

    def on_boundary(
        self, step: int, survivors: Sequence[Place], may_begin: bool
    ) -> Sequence[GiverEffect]:
        """All `survivors` have ended `step`. With `may_begin` none of them holds the others."""
        if self.state is GiverState.ASKED and may_begin:
            return self._begin(step, survivors)
        if self.state is not GiverState.GIVING:
            return ()
        if set(self._givers) <= set(survivors):
            return (SendEntry(step),)
        if self._attempts == ATTEMPTS_MAX:
            return self._give_up(f"{ATTEMPTS_MAX} survivors were lost while they gave their state")
        return self._begin(step, set(self._givers) & set(survivors))

    def on_full_member(self, step: int, survivors: Sequence[Place]) -> Sequence[GiverEffect]:
        """The node takes part in steps after `step`. on_boundary() of `step` came before."""
        if self.state is GiverState.GIVING and set(self._givers) <= set(survivors):
            self.state = GiverState.OVER
            return (SendRest(step, is_first=self._givers[0] == self._own),)
        if self.state is GiverState.GIVING:
            return self._give_up("a survivor was lost as the node entered")
        if self.state is GiverState.OVER:
            return ()  # Its last message, such as why it gave up, may be on its way.
        self.state = GiverState.OVER
        return (SendRest(step, is_first=False),)

    def on_backlog(self, backlog_bytes: int, bytes_max: int) -> Sequence[GiverEffect]:
        """`backlog_bytes` of the log are not sent yet. More than `bytes_max` are too many."""
        if self.state is not GiverState.GIVING or backlog_bytes <= bytes_max:
            return ()
        return self._give_up(
            f"steps make more than the link carries: {backlog_bytes} bytes wait to be sent"
        )

    def on_failure(self, reason: str) -> Sequence[GiverEffect]:
        """This survivor's state can no longer be given in steps."""
        return () if self.state is GiverState.OVER else self._give_up(reason)

    def on_lost(self) -> Sequence[GiverEffect]:
        """The standby is gone."""
        self.state = GiverState.OVER
        return (Drop(),)

    def on_entered(self) -> Sequence[GiverEffect]:
        """All follow a view in which the node takes part in steps and needs this line no more."""
        self.state = GiverState.OVER
        return (EndLine(),)

    def _begin(self, step: int, givers: Collection[Place]) -> Sequence[GiverEffect]:
        self.state = GiverState.GIVING
        self._givers = tuple(sorted(givers))
        self._attempts += 1
        place = self._givers.index(self._own)
        return (CopySnapshot(step, place, len(self._givers)),)

    def _give_up(self, reason: str) -> Sequence[GiverEffect]:
        self.state = GiverState.OVER
        return (SendUnable(reason),)


# ----- The joiner -----


@dataclass(frozen=True)
class Load:
    """Take over the snapshot. All its stripes are there."""

    step: int


@dataclass(frozen=True)
class Apply:
    """Apply the step. All its stripes are there."""

    step: int


@dataclass(frozen=True)
class SayReady:
    """The node may enter."""


@dataclass(frozen=True)
class TakeRest:
    """Take over what is not replayed. This rank then has the state of all others."""

    step: int


@dataclass(frozen=True)
class TakeWhole:
    """Drop what has come. The whole state is taken after the node has entered, while all wait."""

    reason: str


TakerEffect = Union[Load, Apply, SayReady, TakeRest, TakeWhole]


class TakerState(Enum):
    """The states of one rank of a standby."""

    LOADING = "stripes of the snapshot are missing"
    REPLAYING = "it has a snapshot, and applies steps"
    CAUGHT_UP = "it has the state of the step after which its node has entered"
    WHOLE = "it needs the whole state"


@dataclass
class _Line:
    """The messages that have come from one survivor, in its newest attempt."""

    step: int = 0  # The snapshot's step; 0 if there is no snapshot.
    place: int = 0
    count: int = 0
    layout: bytes = b""
    has_stripe: bool = False
    logged: int = 0  # The last step whose entry is there.
    told: int = 0  # The last step whose entry is known to be on its way.
    rest_of: int | None = None


class Taker:
    """The joiner's part: see the module. A line brings a survivor's messages in their order."""

    def __init__(self, lines: Sequence[Place]) -> None:
        self.state = TakerState.LOADING
        self.step = 0  # The step whose state this rank has.
        self._loaded = 0  # The step of the snapshot that it has loaded.
        self._lines = {place: _Line() for place in lines}
        self._has_said_ready = False
        self._entered_at: int | None = None

    @property
    def lines(self) -> list[Place]:
        """The survivors from which something may come."""
        return list(self._lines)

    def on_line(self, place: Place) -> None:
        """There is one more survivor that may give."""
        self._lines.setdefault(place, _Line())

    def on_snapshot(
        self, place: Place, step: int, stripe: tuple[int, int], layout: bytes
    ) -> Sequence[TakerEffect]:
        """A stripe begins to come: number `stripe[0]` of `stripe[1]`. What came before is void."""
        self._lines[place] = _Line(step, *stripe, layout, logged=step, told=step)
        return ()

    def on_stripe(self, place: Place) -> Sequence[TakerEffect]:
        """The stripe of the line's snapshot is there."""
        self._lines[place].has_stripe = True
        return self._advance()

    def on_entry(self, place: Place, step: int, newest: int) -> Sequence[TakerEffect]:
        """The line's stripe of `step` is there. When it left, `newest` was already to be sent."""
        line = self._lines[place]
        if step != line.logged + 1:
            return self._need_whole(f"step {step} came after step {line.logged} from {place}")
        line.logged, line.told = step, max(line.told, newest, step)
        return self._advance()

    def on_rest(self, place: Place, step: int) -> Sequence[TakerEffect]:
        """The rest of the state is there, as it is after `step`. Nothing more comes on the line."""
        self._lines[place].rest_of = step
        return self._advance()

    def on_unable(self, place: Place, reason: str) -> Sequence[TakerEffect]:
        """The survivor gives nothing more, for `reason`."""
        return self._need_whole(f"rank {place[1]} of node {place[0]}: {reason}")

    def on_line_lost(self, place: Place) -> Sequence[TakerEffect]:
        """The survivor is gone. The others begin anew if they have not sent the rest yet."""
        del self._lines[place]
        if self._lines:
            return self._advance()
        if self._entered_at is None:  # Another survivor's line may follow.
            return ()
        return self._need_whole("no survivor is left that gives its state")

    def on_full_member(self, step: int) -> Sequence[TakerEffect]:
        """The node takes part in steps after `step`."""
        self._entered_at = step
        if self._lines:
            return self._advance()
        return self._need_whole("no survivor is left that gives its state")

    def on_failure(self, reason: str) -> Sequence[TakerEffect]:
        """The data that has come does not fit this rank's state."""
        if self.state is TakerState.CAUGHT_UP:  # The data was the rest.
            self.state = TakerState.WHOLE
            return (TakeWhole(reason),)
        return self._need_whole(reason)

    def _need_whole(self, reason: str) -> Sequence[TakerEffect]:
        if self.state in (TakerState.WHOLE, TakerState.CAUGHT_UP):
            return ()
        self.state = TakerState.WHOLE
        return (TakeWhole(reason), *self._say_ready())

    def _say_ready(self) -> Sequence[TakerEffect]:
        if self._has_said_ready:
            return ()
        self._has_said_ready = True
        return (SayReady(),)

    def _advance(self) -> Sequence[TakerEffect]:
        if self.state in (TakerState.WHOLE, TakerState.CAUGHT_UP):
            return ()
        newest = max(line.step for line in self._lines.values())
        lines = [line for line in self._lines.values() if line.step == newest]
        effects: list[TakerEffect] = []
        if newest == 0:
            if any(line.rest_of is None for line in lines):
                return ()
            return self._need_whole("the survivors that gave their state are lost")
        if newest > self._loaded:
            self.state = TakerState.LOADING
            count = lines[0].count
            if {line.place for line in lines if line.has_stripe} != set(range(count)):
                if all(line.rest_of is not None for line in self._lines.values()):
                    return self._need_whole("a survivor was lost as the node entered")
                return ()
            if len({(line.count, line.layout) for line in lines}) > 1:
                return self._need_whole("survivors hold states of different shapes")
            self.state, self._loaded, self.step = TakerState.REPLAYING, newest, newest
            effects.append(Load(self.step))
        if len(lines) < lines[0].count:  # One line is lost: a newer attempt follows.
            if any(line.rest_of is None for line in self._lines.values()):
                return effects
            return (*effects, *self._need_whole("a survivor was lost as the node entered"))
        while self.step < min(line.logged for line in lines):
            self.step += 1
            effects.append(Apply(self.step))
        # Only an entry tells how many steps were made while the snapshot came.
        behind = max(line.told for line in lines) - self.step
        if self.step > self._loaded and behind <= _BEHIND_MAX:
            effects += self._say_ready()
        if all(line.rest_of is not None for line in lines):
            if {line.rest_of for line in lines} != {self.step}:
                return (*effects, *self._need_whole("steps are missing before the rest"))
            self.state = TakerState.CAUGHT_UP
            effects.append(TakeRest(self.step))
        return effects
