# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job that come and go, as its launcher sees them. docs/elastic.md has the states.

This module uses no process, clock or file. Each event returns the actions to do, in their order.
hosts_run.py does them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

from talweg._counted import counted
from talweg._node.listed_hosts import Host


class JobState(enum.Enum):
    GATHERING = "gathering"  # Nothing is started, because there are too few hosts to begin with.
    MEETING = "meeting"  # Hosts are being reached. The job starts there when all are reached.
    RUNNING = "running"
    SHORT = "short"  # The job has fewer nodes or ranks than `least`, and waits for more.
    FINISHING = "finishing"  # The job is about to end, or has ended. No other host enters.
    ENDING = "ending"  # The launcher ends all that still runs.
    OVER = "over"


class HostState(enum.Enum):
    LISTED = "listed"  # Nothing runs there, because there is no room, or the job has not begun.
    RUNNING = "running"
    LEAVING = "leaving"  # The launcher ends what runs there.
    COOLING = "cooling"  # It has failed, and is used again when its time comes.
    BARRED = "barred"  # It has failed, and is not used again before it has been off the list.
    DONE = "done"  # Its ranks have ended well.


@dataclass(frozen=True)
class Bounds:
    """How many nodes, or ranks with `in_ranks`, a job has.

    The job begins with `first`, which is at least `least`. It waits for more hosts if it has fewer
    than `least`. It never has more than `most`; 0 is no bound.
    """

    first: int = 1
    least: int = 1
    most: int = 0
    in_ranks: bool = False

    def text(self, count: int) -> str:
        return counted(count, "rank" if self.in_ranks else "node")


@dataclass(frozen=True)
class Policy:
    """How long a job waits for hosts, and when it uses hosts again that have failed.

    The job ends if it is without enough hosts for `wait_s`, or if a host that should go has to stay
    for so long. It begins without hosts that are not reached within `meet_s`. A host that has
    failed is used again after the first of `cooldown_s`; that time doubles with each failure, up to
    the second. With None failed hosts are barred. The job ends if hosts come or go more than
    `changes_max` times; None is no limit.
    """

    wait_s: float = 600.0
    cooldown_s: tuple[float, float] | None = None
    changes_max: int | None = None
    meet_s: float = 60.0


@dataclass(frozen=True)
class Start:
    """Reach a host. Its on_here() event says that it is reached."""

    host: str
    node: int
    ranks: int


@dataclass(frozen=True)
class Begin:
    """Have a host that was reached start its node. The job begins with `nodes` nodes."""

    host: str
    nodes: int
    is_later: bool = False  # Others have begun before: the job may have finished.


@dataclass(frozen=True)
class Expect:
    """Tell the nodes that wait for each other that only `nodes` of them come. The on_begun() event
    says that the job has begun already.
    """

    nodes: int


@dataclass(frozen=True)
class Stop:
    host: str


@dataclass(frozen=True)
class FindEntered:
    """Find out which hosts have not entered the job, and whether it has had a view, for
    on_outside(). The job is about to end, because the ranks of `node` have ended.
    """

    node: int


@dataclass(frozen=True)
class Say:
    text: str


Action = Union[Start, Begin, Expect, Stop, FindEntered, Say]


@dataclass
class _Place:
    host: Host
    state: HostState = HostState.LISTED
    is_listed: bool = True
    is_here: bool = False  # The host has been reached.
    goes: bool = False  # The host is off the list, and ends as soon as it may.
    is_first: bool = False  # The host is one of those that the job begins with.
    has_state: bool = False  # The host has the training's state, so it can go on without others.
    node: int = -1
    ranks: int = 0
    failures: int = 0
    again_s: float = 0.0


@dataclass
class HostSet:
    """The hosts of one job."""

    bounds: Bounds
    policy: Policy
    now_s: float  # The time at which the job begins to wait for hosts.
    state: JobState = JobState.GATHERING
    status: int = 0
    report: str = ""  # A text for people that says what went wrong.
    _places: dict[str, _Place] = field(default_factory=dict)  # By host, in the order of coming.
    _nodes: int = 0  # How many nodes have a number. No number is given twice.
    _changes: int = 0
    _has_changed: bool = False  # Whether hosts have come or gone in this event.
    _is_empty: bool = False  # Whether the list named no host when it was read last.
    _short_s: float = field(init=False)
    _met_s: float = 0.0  # When the job begins at the latest, with the hosts that were reached.
    _first_nodes: int = 0  # How many nodes were told to begin at first.
    _has_begun: bool = False  # Whether the job has made its first view.
    _expected: int = 0  # The number of nodes that the first nodes wait for.
    _failures: list[str] = field(default_factory=list)
    # Since when a host that is off the list must stay, because no listed host has its state.
    _stay_s: float | None = None

    def __post_init__(self) -> None:
        self._short_s = self.now_s

    # ----- Questions -----

    def state_of(self, host: str) -> HostState | None:
        place = self._places.get(host)
        return place.state if place is not None else None

    def hosts(self, state: HostState) -> list[str]:
        return [name for name, place in self._places.items() if place.state is state]

    @property
    def asks_for_state(self) -> bool:
        """Whether on_state() must be told which hosts have the training's state."""
        return self._may_change() and bool(self._going())

    def waiting(self) -> str:
        """Returns a text that says which hosts the job waits for; empty if it does not wait."""
        if self._stay_s is not None and self._may_change():
            return self._going_text()
        if self.state not in (JobState.GATHERING, JobState.SHORT):
            return ""
        is_gathering = self.state is JobState.GATHERING
        wanted = self.bounds.first if is_gathering else self.bounds.least
        usable = self._usable() if is_gathering else self.hosts(HostState.RUNNING)
        there = self._offered() if is_gathering else self._count()
        text = f"waiting for hosts: the job needs {self.bounds.text(wanted)}"
        text += " to begin" if is_gathering else " to go on"
        text += f", and has {there} ({', '.join(usable) or 'no host'})"
        unusable = [f"{name} has failed" for name in self.hosts(HostState.BARRED)] + [
            f"{name} has failed and is used again soon" for name in self.hosts(HostState.COOLING)
        ]
        return text + "".join(f"; {each}" for each in unusable)

    def next_s(self) -> float | None:
        """Returns the next time at which on_time() has something to do; None if there is none."""
        times = [
            place.again_s for place in self._places.values() if place.state is HostState.COOLING
        ]
        if self.state in (JobState.GATHERING, JobState.SHORT):
            times.append(self._short_s + self.policy.wait_s)
        if self.state is JobState.MEETING:
            times.append(self._met_s)
        if self._stay_s is not None and self._may_change():
            times.append(self._stay_s + self.policy.wait_s)
        return min(times, default=None)

    # ----- Events -----

    def on_listed(self, hosts: Sequence[Host], now_s: float) -> list[Action]:
        """Takes the hosts that the file or the script names now, in its order."""
        actions: list[Action] = []
        named = {host.name: host for host in hosts if host.slots > 0}
        if not named and self._may_change():
            # Somebody may be writing the file, or the script may not reach its source.
            return self._settle(self._say_empty(), now_s)
        self._is_empty = False
        for name, place in list(self._places.items()):
            if name in named:
                place.is_listed = True
                if place.goes and self._room() >= self._size(place):
                    place.goes = False
                if place.state is HostState.RUNNING and place.host.slots != named[name].slots:
                    actions.append(Say(self._slots_text(place, named[name])))
                place.host = named[name]
                continue
            place.is_listed = False
            if place.state not in (HostState.RUNNING, HostState.LEAVING):
                del self._places[name]
            elif place.state is HostState.RUNNING and not place.goes and self._may_change():
                actions.append(Say(f"host {name} (node {place.node}) is not listed any more"))
                place.goes = self._has_changed = True
                if self.state is JobState.MEETING:
                    actions += self._stop(place)
        for name, host in named.items():
            self._places.setdefault(name, _Place(host))
        return self._settle(actions, now_s)

    def on_here(self, host: str, now_s: float) -> list[Action]:
        """Notes that the host has been reached. It waits for a Begin."""
        place = self._places.get(host)
        if place is None or place.state is not HostState.RUNNING or place.is_here:
            return []
        place.is_here = True
        began = self.state is not JobState.MEETING
        return self._settle([Begin(host, self._first_nodes, is_later=True)] if began else [], now_s)

    def on_ended(self, host: str, status: int, failure: str, now_s: float) -> list[Action]:
        """Notes that all has ended on the host. If `status` is not 0, `failure` says why."""
        place = self._places[host]
        actions: list[Action] = []
        if place.state is HostState.LEAVING or self.state is JobState.ENDING:
            place.state = HostState.LISTED
            if not place.is_listed:
                del self._places[host]
        elif status == 0:
            place.state = HostState.DONE
            if self._may_change():
                self.state = JobState.FINISHING
                actions.append(FindEntered(place.node))
        else:
            actions += self._fail(place, status, failure, now_s)
        return self._settle(actions, now_s)

    def may_be_late(self, host: str) -> bool:
        """Whether the host may have failed because it came when the job had finished."""
        is_late_enough = self._may_change() or self.state is JobState.FINISHING
        return is_late_enough and self.state_of(host) is HostState.RUNNING

    def on_too_late(self, host: str, outside: Sequence[str], now_s: float) -> list[Action]:
        """Notes that the host has failed because the job had finished before it could enter. The
        hosts of `outside` cannot enter either.
        """
        place = self._places[host]
        text = f"host {host} (node {place.node}) comes too late: the job has finished"
        place.state, self.state = HostState.LISTED, JobState.FINISHING
        if not place.is_listed:
            del self._places[host]
        return self._settle([Say(text), *self.on_outside(outside, now_s)], now_s)

    def on_begun(self) -> None:
        """Notes that the job has begun, so no node waits for the others any more."""
        self._has_begun = True

    def on_state(self, hosts: Sequence[str], has_begun: bool, now_s: float) -> list[Action]:
        """Takes the hosts that have the training's state, and whether the job has begun."""
        self._has_begun |= has_begun
        for name, each in self._places.items():
            each.has_state = each.state is HostState.RUNNING and name in hosts
        if not self._may_change():
            return []
        actions: list[Action] = []
        for place in self._going():
            if self._may_go(place):
                actions += self._stop(place)
        if self._stay_s is None and self._going():
            self._stay_s = now_s
        return self._settle(actions, now_s)

    def on_outside(
        self, hosts: Sequence[str], now_s: float, has_begun: bool = True
    ) -> list[Action]:
        """Stops these hosts, because they have not entered the job, which is about to end.

        If the job has never had a view (`has_begun`), its ranks end well without entering it. Then
        the hosts that it began with go on to their own end.
        """
        actions: list[Action] = []
        for name in hosts:
            if self.state_of(name) is HostState.RUNNING and (
                has_begun or not self._places[name].is_first
            ):
                actions.append(Say(f"host {name} comes too late: the job is about to end"))
                actions += self._stop(self._places[name])
        return self._settle(actions, now_s)

    def on_time(self, now_s: float) -> list[Action]:
        for place in self._places.values():
            if place.state is HostState.COOLING and place.again_s <= now_s:
                place.state = HostState.LISTED
        return self._settle([], now_s)

    def end(self, status: int, report: str) -> list[Action]:
        """Ends the job, unless it is ending already."""
        if self.state in (JobState.ENDING, JobState.OVER):
            return []
        self.state, self.status, self.report = JobState.ENDING, status, report
        actions: list[Action] = []
        for place in self._places.values():
            if place.state is HostState.RUNNING:
                actions += self._stop(place)
        self._check_over()
        return actions

    # ----- Consequences of events -----

    def _say_empty(self) -> list[Action]:
        if self._is_empty:
            return []
        self._is_empty = True
        return [Say("the list names no host: the hosts stay what they were")]

    def _may_change(self) -> bool:
        return self.state in (JobState.MEETING, JobState.RUNNING, JobState.SHORT)

    def _going(self) -> list[_Place]:
        """Returns the hosts that run, and that end as soon as they may."""
        places = self._places.values()
        return [each for each in places if each.state is HostState.RUNNING and each.goes]

    def _going_text(self) -> str:
        names = ", ".join(each.host.name for each in self._going())
        return f"host {names} is not listed any more, and goes when a listed host has its state"

    def _may_go(self, place: _Place) -> bool:
        """Whether the training keeps its state without this host."""
        others = [
            each
            for each in self._places.values()
            if each.state is HostState.RUNNING and each is not place
        ]
        if not self._has_begun:
            return any(each.is_first and not each.goes for each in others)
        return any(each.has_state and not (each.goes and place.has_state) for each in others)

    def _stop(self, place: _Place) -> list[Action]:
        place.state = HostState.LEAVING
        return [Stop(place.host.name)]

    def _fail(self, place: _Place, status: int, failure: str, now_s: float) -> list[Action]:
        name = place.host.name
        self._failures.append(f"host {name} (node {place.node}): {failure}")
        place.failures += 1
        text = f"host {name} (node {place.node}) is lost: {failure}"
        if not self._may_change():
            place.state = HostState.BARRED
            if self.state is JobState.FINISHING and not self._ends_well():
                return [Say(text), *self.end(status, self._failures[-1])]
            return [Say(text)]
        self._has_changed = True
        if self.policy.cooldown_s is None:
            place.state = HostState.BARRED
            text += "; it is not used again before it has been off the list"
        else:
            least, most = self.policy.cooldown_s
            pause_s = min(most, least * 2 ** (place.failures - 1))
            place.state, place.again_s = HostState.COOLING, now_s + pause_s
            text += f"; it is used again after {pause_s:g} s"
        if not place.is_listed:
            del self._places[name]
        if not self.hosts(HostState.RUNNING):
            return [Say(text), *self.end(status, f"{self._failures[-1]}; no node is left")]
        return [Say(text)]

    def _ends_well(self) -> bool:
        """Whether the ranks of some host have ended well, or still may."""
        return bool(self.hosts(HostState.DONE) or self.hosts(HostState.RUNNING))

    def _settle(self, actions: list[Action], now_s: float) -> list[Action]:
        """Starts hosts while there is room. Waits, goes on or ends, by the number of hosts."""
        if self.state is JobState.GATHERING:
            if self._offered() >= self.bounds.first:
                self.state, self._met_s = JobState.MEETING, now_s + self.policy.meet_s
                actions += self._start_all()
                self._has_changed = False  # The job's beginning does not count as a change.
                return actions
        elif self._may_change():
            if self.state is not JobState.MEETING and not self.hosts(HostState.RUNNING):
                return actions + self.end(1, "no host is left that has the job's state")
            actions += self._start_all()
            if not self.hosts(HostState.RUNNING):
                return actions + self.end(1, "no host is left")
            if self._has_changed and not self._may_change_again():
                limit = self.policy.changes_max
                text = f"hosts have come or gone {counted(self._changes, 'time')}, and the limit is {limit}"
                return actions + self.end(1, text)
            actions += self._meet(now_s)
            actions += self._expect()
            actions += self._follow_count(now_s)
            if not self._going():
                self._stay_s = None
            elif self._stay_s is not None and now_s - self._stay_s >= self.policy.wait_s:
                text = f"{self._going_text()}: none has got it within {self.policy.wait_s:g} s"
                return actions + self.end(1, text)
        if self.state in (JobState.GATHERING, JobState.SHORT):
            if now_s - self._short_s >= self.policy.wait_s:
                text = f"{self.waiting()}: not within {self.policy.wait_s:g} s"
                return actions + self.end(1, text)
        self._check_over()
        return actions

    def _may_change_again(self) -> bool:
        self._changes, self._has_changed = self._changes + 1, False
        return self.policy.changes_max is None or self._changes <= self.policy.changes_max

    def _meet(self, now_s: float) -> list[Action]:
        """Begins the job when all its hosts are reached, or when the time for that is over."""
        if self.state is not JobState.MEETING:
            return []
        running = self.hosts(HostState.RUNNING)
        late = [name for name in running if not self._places[name].is_here]
        if late and now_s < self._met_s:
            return []
        self.state = JobState.RUNNING
        here = [name for name in running if name not in late]
        if not here:
            return self.end(1, f"no host has been reached within {self.policy.meet_s:g} s")
        for name in here:
            self._places[name].is_first = True
        self._first_nodes = len(here)
        self._expected = len(here)
        actions: list[Action] = [Begin(name, len(here)) for name in here]
        if late:
            text = f"host {', '.join(late)} has not been reached within {self.policy.meet_s:g} s"
            actions.append(Say(f"{text}: the job begins without it"))
        return actions

    def _expect(self) -> list[Action]:
        """Keeps the first nodes from waiting for a host that is lost. A host that is reached later
        may take its place.
        """
        if self.state is JobState.MEETING or self._has_begun:
            return []
        # A host that is leaving counts, too. Otherwise it could begin alone.
        there = (HostState.RUNNING, HostState.LEAVING)
        count = sum(each.is_here and each.state in there for each in self._places.values())
        if not 0 < count < self._expected:
            return []
        self._expected = count
        return [Expect(count)]

    def _follow_count(self, now_s: float) -> list[Action]:
        if self.state is JobState.MEETING:
            return []
        is_short = self._count() < self.bounds.least
        if is_short == (self.state is JobState.SHORT):
            return []
        self.state = JobState.SHORT if is_short else JobState.RUNNING
        self._short_s = now_s
        if is_short:
            return [Say(f"{self.waiting()}, for at most {self.policy.wait_s:g} s")]
        return [Say(f"the job has {self.bounds.text(self._count())} and goes on")]

    def _check_over(self) -> None:
        if self.hosts(HostState.RUNNING) or self.hosts(HostState.LEAVING):
            return
        if self.state is JobState.FINISHING and self._failures:
            self.report = f"the job has ended well without {'; '.join(self._failures)}"
        if self.state in (JobState.FINISHING, JobState.ENDING):
            self.state = JobState.OVER

    # ----- Numbers -----

    def _size(self, place: _Place) -> int:
        return place.ranks if self.bounds.in_ranks else 1

    def _count(self) -> int:
        places = self._places.values()
        return sum(self._size(each) for each in places if each.state is HostState.RUNNING)

    def _room(self) -> int:
        """Returns how many more nodes or ranks may start. A host that goes takes no room."""
        left = sum(self._size(each) for each in self._going())
        return self.bounds.most - (self._count() - left) if self.bounds.most else 1 << 30

    def _usable(self) -> list[str]:
        return self.hosts(HostState.LISTED)

    def _offered(self) -> int:
        """Returns how many nodes or ranks the hosts offer on which nothing runs."""
        places = [self._places[name] for name in self._usable()]
        return sum(each.host.slots for each in places) if self.bounds.in_ranks else len(places)

    def _start_all(self) -> list[Action]:
        actions: list[Action] = []
        for name in self._usable():
            place = self._places[name]
            room = self._room()
            if room <= 0:
                break
            place.ranks = min(place.host.slots, room) if self.bounds.in_ranks else place.host.slots
            place.node, self._nodes = self._nodes, self._nodes + 1
            place.state, self._has_changed = HostState.RUNNING, True
            place.is_here = place.goes = place.is_first = place.has_state = False
            actions.append(Say(f"host {name} is node {place.node}, with {_ranks(place.ranks)}"))
            actions.append(Start(name, place.node, place.ranks))
        return actions

    @staticmethod
    def _slots_text(place: _Place, listed: Host) -> str:
        return (
            f"host {listed.name} is listed with {counted(listed.slots, 'slot')} now: it goes on with "
            f"{_ranks(place.ranks)}; take it off the list and put it back to have it started anew"
        )


def _ranks(count: int) -> str:
    return counted(count, "rank")
