# SPDX-License-Identifier: Apache-2.0
"""The membership of a job, as a program sees it: docs/elastic.md.

The membership changes only at the ends of steps, at the same end for all ranks. Ranks agree in
rounds of unsigned numbers, of which the greatest counts. `talweg.step` is the round at the end of
each step. If something has changed, the rounds of agreement.py (which view), state_rounds.py (the
State, and its digests), giving.py and taking.py (the State beside the steps) follow.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Optional

from talweg import _client, _interrupts
from talweg._client import Client
from talweg._elastic import state_rounds
from talweg._elastic.agreement import Agreed, Agreement, Said
from talweg._elastic.lanes import StepLanes, greatest, tell_times
from talweg._elastic.replay import Replay
from talweg._elastic.state_rounds import StateHolder
from talweg._elastic.taking import Taking
from talweg._elastic.views import Change, Least, Member, View, change_between, view_of
from talweg.errors import Aborted, InvalidArgument, Mismatch, NotSynchronized, TalwegError

if TYPE_CHECKING:
    from talweg._digest import Hashing

# How many steps a program of Horovod may make at a rank that enters, before the rank has the
# others' state. It makes one step to create its optimizer's variables. If it makes more, it trains
# alone.
_OWN_STEPS_MAX = 10

# Is told who has ended the step, by rank (None: all). And, for each sampler whose batches are in
# proportion to speed, how long a sample takes each rank, and how long a step takes.
Commit = Callable[[Optional[Sequence[bool]], Sequence[Sequence[int]]], object]

# How many seconds ranks wait, if there are too few, before they look for others again.
_LOOK_S = 0.1

_NOT_SYNCHRONIZED = (
    "this rank has joined a running job and has not got the state of those that were there before: "
    "call begin() of a talweg.State (or talweg.torch.Elastic) first, which hvd.elastic.run does, or "
    "talweg.enter() if the program takes over their state in a way of its own"
)


def _started(hashing: Hashing | None) -> Hashing | None:
    if hashing is not None:
        hashing.start()
    return hashing


class Standing(Enum):
    """What this rank is in the job. Ranks begin as members, except for those that enter later.

    A rank whose agent was lost has another Membership after rejoin(). It is then a joiner or a
    standby, or a member if the job has begun anew. Until begin() or enter() it is `rejoined`, and
    goes on from the view that the program knew.
    """

    STANDBY = "its node takes part in no steps yet"
    JOINER = "its node does; it has not got the others' state, and may push nothing"
    MEMBER = "it has what all have"


class Event(Enum):
    """The events that change a rank's standing."""

    FULL_MEMBER = "begin() or enter(): its ranks were ready, and its node takes part in steps"
    BEGUN = "begin() or enter(): it has the others' state, or takes it over in a way of its own"


# An event that a standing does not list cannot happen in it.
TRANSITIONS: Mapping[Standing, Mapping[Event, Standing]] = {
    Standing.STANDBY: {Event.FULL_MEMBER: Standing.JOINER},
    Standing.JOINER: {Event.BEGUN: Standing.MEMBER},
    Standing.MEMBER: {Event.BEGUN: Standing.MEMBER},  # At the job's beginning, and after rejoin().
}


class Membership:
    """The membership of one client. It follows the views at the ends of steps."""

    def __init__(self, client: Client) -> None:
        self.client = client
        # Whether ranks have begun at different times, which all of them know alike. Then no rank
        # takes part in what others did at their beginning.
        self.began_apart = False
        self.callbacks: list[Callable[[Change], Any]] = []
        self.holder: StateHolder | None = None
        # The view that the program knew before this rank's agent was lost. Set while the rank has
        # been attached again, and has not begun since then.
        self.rejoined: View | None = None
        # What had changed when this rank began again.
        self.change: Change | None = None
        self.least = Least.told()
        # Why this rank has taken the whole state while others waited; None if it has not.
        self.took_whole: str | None = None
        # How many results this rank, a joiner, has made alone, by name.
        self._own: Counter[str] = Counter()
        # What this rank, a joiner, has taken beside the steps.
        self._taking: Taking | None = None
        self._standing = Standing.MEMBER
        # Whether the state has just travelled. The next step tells whether all go on alike from it.
        self._is_first_step = False
        # The same if joiners have caught up. A thread hashes the state of that step's end, and all
        # ranks compare the digests at the end of the next step.
        self._hashes_first_step = False
        self._has_compared = False  # In the step that an interrupt has kept from ending.
        self._hashing: Hashing | None = None
        # In the first step with a joiner, whether this rank has joined. None in any other step.
        self._entered: bool | None = None
        # Hashes this rank's state while it waits for joiners at the end of a step.
        self._waiting: Hashing | None = None
        self._steps_base = 0
        everybody = (Member(0, 0, range(client.size)),)
        alone = View(0, everybody, client.rank, client.size)
        self._agreement = Agreement(client, alone)
        if client.membership_at_first is None:
            return
        found, members = client.membership_at_first
        beginning = view_of(found, members)
        self._steps_base = int(found.steps_base)
        if found.standby:  # It learns later how many steps there have been.
            self._standing = Standing.STANDBY
            client.connection.is_standby = True
        elif self._steps_base > 0:
            self._standing = Standing.JOINER
        is_told = (found.rank, found.size) == (client.rank, client.size)
        if is_told or self._standing is Standing.STANDBY:
            self._agreement.view = beginning
        else:
            # Nodes have been lost since this rank got its number. It gets another one at its first
            # step.
            self._agreement.view = replace(beginning, epoch=0, rank=client.rank, size=client.size)
        if self.is_joiner:
            client.connection.refusal = _NOT_SYNCHRONIZED

    def _go_on(self, event: Event) -> None:
        self._standing = TRANSITIONS[self._standing][event]

    def follow_on(self, lost: Membership) -> None:
        """Takes over from `lost`, which this rank had before its agent was lost."""
        self.callbacks = lost.callbacks
        lost._end_hashing()
        # The rank may lose its agent again before it has begun.
        self.rejoined = lost.rejoined or lost.view

    @property
    def view(self) -> View:
        """The view that the program knows."""
        return self._agreement.view

    @property
    def is_joiner(self) -> bool:
        """Whether this rank has entered a running job, and has not got the others' state."""
        return self._standing is not Standing.MEMBER

    def keeps_own(self, name: str) -> bool:
        """Whether a gradient of that name stays this rank's own.

        It does if the rank has entered a running job, has made few steps, and has not got the
        others' state, which will replace all that it computes.
        """
        if not self.is_joiner or self.rejoined is not None:
            return False
        self._own[name] += 1
        return self._own[name] <= _OWN_STEPS_MAX

    @property
    def begins_anew(self) -> bool:
        """Whether this rank has been attached again, to a job that has begun without it or by it.

        Then no other rank can tell it how far the earlier job had come.
        """
        return self.rejoined is not None and not self.is_joiner

    @property
    def is_behind(self) -> bool:
        """Whether ranks have come or gone that this rank has not been told of."""
        return self.client.nodes_change and self.client.connection.newest_epoch() != self.view.epoch

    @property
    def _round_of_step(self) -> tuple[str, int]:
        """Returns the name of the round at the end of a step, and how many numbers it has."""
        name, standbys = f"talweg.step{self.client.connection.view_suffix}", self.view.standbys
        if standbys:
            name += f".beside{len(standbys)}"
        if self._balanced:
            name += f".times{self._balanced}"
        return name, StepLanes.count(self.client.size, len(standbys), self._balanced)

    @property
    def _balanced(self) -> int:
        """How many samplers deal batches in proportion to ranks' speeds."""
        return 0 if self.holder is None else self.holder.balanced_samplers

    @property
    def rounds_of_steps(self) -> list[tuple[str, int]]:
        """Returns the names of the rounds that end a step, and how many numbers each has."""
        return [*self._agreement.rounds, self._round_of_step] if self.client.nodes_change else []

    # ----- Changes of the membership -----

    @contextlib.contextmanager
    def _unguarded(self) -> Iterator[None]:
        connection = self.client.connection
        refusal, connection.refusal = connection.refusal, None
        try:
            yield
        finally:
            connection.refusal = refusal

    def _replay(self) -> Replay | None:
        return self.holder.replay() if self.holder is not None else None

    def _agree(self, wants_state: bool, has_caught_up: bool) -> Agreed:
        """Agrees on one view, and tells joiners which names are free. Returns what was agreed."""
        while True:
            holds = self.holder is not None
            said = Said(self.is_joiner, self.begins_anew, holds, wants_state, has_caught_up)
            agreed = self._agreement.agree(said, self._replay)
            self.began_apart |= agreed.began_apart
            if agreed.has_joiners:
                listeners = self._agreement.listeners(self.is_joiner)
                if self._taking is not None:
                    self._taking.end_lines(self.view, listeners)
            with contextlib.suppress(Aborted):  # The teller is gone, and the next one tells.
                self._agreement.tell_free_names(agreed)
                return agreed

    def _resynchronize(self, wants_state: bool, has_caught_up: bool = False) -> None:
        """Returns when all ranks follow one view, and all that want the state have it.

        If a rank is lost meanwhile, all agree anew, and begin again from there.
        """
        client = self.client
        leave = client.close if self.is_joiner else None
        while True:
            agreed = self._agree(wants_state, has_caught_up)
            takes = wants_state
            if agreed.wanted and has_caught_up:  # The whole state is sent anyway.
                takes, self.took_whole = True, self.took_whole or "another joiner needed it"
            if not agreed.wanted and not agreed.caught_up:
                return
            if not agreed.wanted:
                try:
                    digest = None if self._waiting is None else self._waiting.finish
                    state_rounds.compare(client, self.holder, digest=digest, leave=leave)
                except Aborted:  # A joiner is gone.
                    continue
                except Mismatch:
                    # Only the optimizer's changes are replayed. So the joiner takes all the state.
                    if has_caught_up:
                        self.took_whole = "its parameters were not those of the others"
                        wants_state, has_caught_up = True, False
                    continue
                self._hashes_first_step = True
                self._entered = self.is_joiner
                return
            if agreed.source is None:
                if not wants_state:
                    return  # The joiner ends, and the other ranks go on.
                raise NotSynchronized(
                    "this rank has joined a running job in which no rank holds a talweg.State: "
                    "give the program one, and call its begin() and end_step()"
                )
            try:
                root = self.view.rank_at(*agreed.source)
                failure = state_rounds.transfer(client, self.holder, root, takes)
                state_rounds.compare(client, self.holder, failure, root=root, leave=leave)
            except Aborted:  # The source or a joiner is gone: all agree anew.
                continue
            self._is_first_step = True
            self._entered = self.is_joiner if agreed.has_joiners else None
            return

    # ----- Called by the program -----

    def begin(self, holder: StateHolder) -> bool:
        """Makes every rank start with the lowest rank's state. Returns whether this one is a
        joiner.

        A joiner gets the state of the lowest rank that was there before.
        """
        was_joiner = self.is_joiner
        self.holder = holder
        if self.client.is_alone or (self.client.size == 1 and not self.client.nodes_change):
            self._begun()
            return was_joiner
        with self._unguarded():
            has_caught_up = self._become_full_member(holder.replay())
            self._resynchronize(not has_caught_up, has_caught_up)
        self._begun()
        self._await_others()
        return was_joiner

    def enter(self) -> None:
        """Enters a running job without a State."""
        if self.is_joiner:
            with self._unguarded():
                self._become_full_member(None)
                self._resynchronize(wants_state=False)
        if self.is_joiner or self.rejoined is not None:
            self._begun()

    def _become_full_member(self, replay: Replay | None) -> bool:
        """Waits until this rank's node takes part in steps. Returns whether this rank has caught
        up.
        """
        if self._standing is not Standing.STANDBY:
            return False
        taking = self._taking = Taking(self.client, replay)
        has_caught_up, self.took_whole = taking.run(), taking.reason
        found, members = self.client.connection.membership()
        self._steps_base, self._agreement.view = int(found.steps_base), view_of(found, members)
        self.client.connection.is_standby = False
        self._go_on(Event.FULL_MEMBER)
        return has_caught_up

    def _begun(self) -> None:
        self._go_on(Event.BEGUN)
        self._taking = None
        self.client.connection.refusal = None
        before, self.rejoined = self.rejoined, None
        self.change = None if before is None else change_between(before, self.view)
        self._tell(self.change)

    def end_step(self, commit: Commit | None = None) -> Change | None:
        """Ends the step. Nodes come and go here. With a State, returns when there are enough ranks.

        `commit` is called before any rank enters.
        """
        self.client.finish_step()
        before = self.view
        change = self._end_one_step(commit)
        if not self._await_others():
            return change
        return change_between(before, self.view)

    def _await_others(self) -> bool:
        """Ends empty steps, in which nodes may enter, while there are too few ranks. Returns
        whether there were.
        """
        were_few = False
        # Without a State a joiner's next rounds are the program's own, and others must take part.
        while (
            self.client.nodes_change
            and self.holder is not None
            and not self.least.is_there(self.view)
        ):
            were_few = True
            time.sleep(_LOOK_S)
            self._end_one_step(None)
        return were_few

    def _is_compared(self, step: int) -> bool:
        """Whether digests are compared at the end of that step."""
        if self.holder is None:
            return False
        every = self.holder.digest_steps
        return self._is_first_step or (every > 0 and step % every == 0)

    def _digest_of_step(self, is_compared: bool) -> int:
        """Returns the digest that this rank tells at the end of a step. 0: none."""
        hashed, self._hashing = self._hashing, None
        hashes, self._hashes_first_step = self._hashes_first_step, False
        if hashed is not None:
            hashed.close()
        if self.holder is None:
            return 0
        if hashes and not is_compared:
            self._hashing = _started(self.holder.hashing())
            is_compared = self._hashing is None
        if is_compared:
            return state_rounds.digest_of(self.holder)
        return 0 if hashed is None else state_rounds.told(hashed.finish())

    def _end_hashing(self) -> None:
        hashed, self._hashing = self._hashing, None
        if hashed is not None:
            hashed.close()

    def _end_one_step(self, commit: Commit | None) -> Change | None:
        # First, because this rank's own work is over with the last push before this.
        times = self.holder.own_times() if self.holder is not None else ()
        ended = self.client.connection.steps_ended()
        step = self._steps_base + ended + 1
        was_first = self._is_first_step
        is_compared, self._is_first_step = self._is_compared(step), False
        try:
            return self._end_this_step(commit, step, is_compared, times)
        except TalwegError:
            raise
        except BaseException:  # A signal's handler has raised it. The next call ends the same step.
            if self.client.connection.steps_ended() == ended:
                self._is_first_step = was_first
            raise

    def _end_this_step(
        self, commit: Commit | None, step: int, is_compared: bool, times: Sequence[tuple[int, int]]
    ) -> Change | None:
        if not self.client.nodes_change:
            with _interrupts.held:  # A wait may be interrupted.
                self._end_step_of_all(commit, is_compared, times)
            return None
        if self.is_joiner:
            raise NotSynchronized(_NOT_SYNCHRONIZED)
        before = self.view
        if not self._agreement.has_agreed:
            self._resynchronize(wants_state=False)
        digest = self._digest_of_step(is_compared)
        with _interrupts.held:  # A wait may be interrupted.
            told = self._exchange(digest, times)
            ended = told.ended
            if commit is not None:
                commit(ended, told.times.tolist())
            self._agreement.giving.on_boundary(step, self.view, ended, told.holds.tolist())
            self.client.connection.end_step()
        self._follow_newer(told.newest_epoch)
        change = change_between(before, self.view)
        self._tell(change)
        return change

    def _end_step_of_all(
        self, commit: Commit | None, is_compared: bool, times: Sequence[tuple[int, int]]
    ) -> None:
        """Ends a step in which nobody comes or goes."""
        told: list[list[int]] = []
        if is_compared and not self._has_compared and self.client.size > 1:
            state_rounds.compare(self.client, self.holder)
            self._has_compared = True
        if times and self.client.size > 1:
            told = state_rounds.exchange_times(self.client, times)
        if commit is not None:
            commit(None, told)
        self._has_compared = False
        if not self.client.is_alone:
            self.client.connection.end_step()

    def _exchange(self, digest: int, times: Sequence[tuple[int, int]]) -> StepLanes:
        """Tells the other ranks that this rank ends the step, and hears the same from them.

        Ranks compare digests. `digest` is 0 if this rank has none. `times` are those of the holder.
        """
        client = self.client
        told = StepLanes(client.size, len(self.view.standbys), len(times))
        tell_times(told.times, client.rank, times)
        told.tell_epoch(client.connection.newest_epoch())
        if digest:
            told.tell_digest(digest)
        told.tell_end(client.rank)
        told.holds[:] = self._agreement.giving.look(self.view)
        has_joined, self._entered = self._entered, None
        counters = 0
        if has_joined is not None:
            counters = state_rounds.tell_counters(self.holder, has_joined, told.counters)
        greatest(client, self._round_of_step[0], told.all)
        if has_joined and counters:
            state_rounds.warn_of_counters(counters, told.counters)
        self._require_none_joined(told.ended, bool(digest))
        if told.digests_differ:
            state_rounds.compare(client, self.holder)  # Its error names the ranks that differ.
        return told

    def _follow_newer(self, newest_epoch: int) -> None:
        """Goes on, after the step, in the newer view that a rank has told of, if there is one."""
        connection = self.client.connection
        steps = self._steps_base + connection.steps_ended()
        has_joiner = False
        if connection.newest_epoch() != self.view.epoch:
            found, members = connection.membership()
            has_joiner = found.steps_entered == steps
            self._agreement.giving.on_view(steps, view_of(found, members))
        if newest_epoch == self.view.epoch and not has_joiner:
            return
        if has_joiner and self._agreement.giving.is_busy and self.holder is not None:
            self._waiting = _started(self.holder.hashing())
        try:
            self._resynchronize(wants_state=False)
        finally:
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                waiting.close()

    def _require_none_joined(self, ended: tuple[bool, ...], is_compared: bool) -> None:
        """Raises InvalidArgument if a rank of the job is in hvd.join(), and so gives zeros."""
        if all(ended):
            return
        missing = [rank for rank, has_ended in enumerate(ended) if not has_ended]
        # A rank that is gone is missing in the newer view, which the agent has by now.
        _, found = self.client.connection.membership()
        left = {(int(each.node), int(each.incarnation)) for each in found}
        members = [each for each in self.view.members if (each.node, each.incarnation) in left]
        joined = [rank for rank in missing if any(rank in each.ranks for each in members)]
        if joined:
            self._is_first_step = is_compared  # Then the next step counts as the first one.
            raise InvalidArgument(
                f"end_step() (commit(), check_host_updates()): ranks {joined} are in hvd.join(), and "
                "end no steps: call it when all ranks have joined"
            )

    def _tell(self, change: Change | None) -> None:
        """Calls all callbacks, even if one of them raises. Raises the last error."""
        if change is None:
            return
        with contextlib.ExitStack() as calls:
            for callback in reversed(self.callbacks):
                calls.callback(callback, change)


def membership_of(client: Client) -> Membership:
    """Returns the membership of `client`."""
    return client.companion(Membership)


_client.follow(membership_of)  # A joiner gets its Membership before it pushes anything.
