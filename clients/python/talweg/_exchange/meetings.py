# SPDX-License-Identifier: Apache-2.0
"""How ranks that wait for nobody add up what their steps change: docs/asynchronous.md."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import numpy as np

from talweg import _interrupts

# What each rank says in a meeting, in f64. A lost rank's row is zeros.
_PRESENT, _GIVES, _LEAVES, _STEPS, _STEP_S = range(5)
_WORDS = 5

# How long a meeting waits for a rank's step: this part of the shortest step of all ranks, within
# these limits, in seconds.
_PAUSE_STEPS = 0.5
_PAUSE_S = (0.002, 0.5)
_PAUSE_S_AT_FIRST = 0.05

# Writes how far this rank's parameters have moved since the last call into the second array, and
# makes the parameters the first array, which is the global parameters, plus that.
Merge = Callable[[np.ndarray, np.ndarray], None]


class Phase(Enum):
    """One rank's states. docs/asynchronous.md draws the transitions."""

    RESTING = "resting"  # No thread runs.
    MEETING = "meeting"
    LEAVING = "leaving"  # This rank makes no more steps, and meets the others until all leave.
    FAILED = "failed"  # A meeting has failed. The next call raises its error.


class Ranks(Protocol):
    """The ranks that meet."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def place(self) -> int:
        """This rank's place among them."""

    def add_up(self, numbers: np.ndarray) -> None:
        """Replaces the numbers by their sums over all ranks, which are the same bits at each."""


class Meetings:
    """One rank's meetings with the others. The program's thread calls the methods. A thread of this
    object meets the threads of the other ranks.

    `shared` is the global parameters, of f32 or f64. `ahead` and `lead` are as the page says.
    """

    def __init__(
        self, ranks: Ranks, shared: np.ndarray, ahead: int = 1, lead: int | None = None
    ) -> None:
        self._ranks = ranks
        self._ahead, self._lead = ahead, lead
        # Everything below changes while this is held.
        self._changed = threading.Condition()
        self.shared = shared
        # The program's thread writes the first one, while no movement is under way. The other thread
        # has the second one. A movement is given by exchanging them.
        self._movement: np.ndarray = np.zeros_like(shared)
        self._sum: np.ndarray = np.zeros_like(shared)
        self._sum_is_zero = True
        self._phase = Phase.RESTING
        self._failure: BaseException | None = None
        self._reset()

    def _reset(self) -> None:
        self._is_given = False  # `_movement` waits for a meeting.
        self._is_under_way = False  # A movement is given, and `shared` does not have it yet.
        self._steps = 0
        self._steps_since = 0  # Those that no movement has yet.
        self._step_s = 0.0
        self._told: np.ndarray = np.zeros((0, _WORDS))  # What ranks said in the last meeting.

    @property
    def phase(self) -> Phase:
        return self._phase

    # ----- The program's thread -----

    def start(self) -> None:
        """RESTING -> MEETING. All ranks call it, with the same values in `shared`."""
        assert self._phase is Phase.RESTING
        self._reset()
        self._phase = Phase.MEETING
        threading.Thread(target=self._run, name="talweg.meetings", daemon=True).start()

    def require(self) -> None:
        """FAILED -> RESTING: raises the error. Does nothing in other phases."""
        with self._changed:
            if self._phase is Phase.FAILED:
                self._phase = Phase.RESTING
                assert self._failure is not None
                raise self._failure

    def step(self, merge: Merge, step_s: float) -> None:
        """Counts a step of this rank, which took so long. Gives its movement, or waits, as `ahead`
        and `lead` say.
        """
        with self._changed:
            self._steps += 1
            self._steps_since += 1
            self._step_s = step_s
        if self._steps_since >= self._ahead:
            self._wait_until_back()
        if self._give(merge) and self._ahead == 0:
            self._wait_until_back()
            self._merge(merge)
        if self._lead is not None:
            self._wait(lambda: self._steps - self._slowest() <= (self._lead or 0))

    def leave(self, merge: Merge) -> None:
        """MEETING -> LEAVING -> RESTING. Returns when all ranks leave, with equal parameters."""
        self._wait_until_back()
        if self._phase is Phase.MEETING:
            self._give(merge)
            with self._changed:
                self._phase = Phase.LEAVING
                self._changed.notify_all()
        self._wait(lambda: self._phase is Phase.RESTING)
        self._merge(merge)

    def _give(self, merge: Merge) -> bool:
        """Gives what this rank has moved since its last movement, unless that is under way."""
        with _interrupts.held, self._changed:
            if self._is_under_way:
                return False
            merge(self.shared, self._movement)
            self._is_given = self._is_under_way = True
            self._steps_since = 0
            self._changed.notify_all()
        return True

    def _merge(self, merge: Merge) -> None:
        with _interrupts.held, self._changed:
            merge(self.shared, self._movement)

    def _wait_until_back(self) -> None:
        self._wait(lambda: not self._is_under_way)

    def _wait(self, is_true: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: is_true() or self._phase is Phase.FAILED)
        self.require()

    def _slowest(self) -> int:
        """Returns how many steps the slowest rank had made at the last meeting, without those that
        leave.
        """
        if not len(self._told):
            return 0
        stays = (self._told[:, _PRESENT] > 0) & (self._told[:, _LEAVES] == 0)
        stays[self._ranks.place] = False
        return int(np.min(self._told[stays, _STEPS], initial=self._steps))

    # ----- The meetings' thread -----

    def _run(self) -> None:
        try:
            while self._meet():
                pass
        except BaseException as failure:
            with self._changed:
                self._failure, self._phase = failure, Phase.FAILED
                self._changed.notify_all()

    def _meet(self) -> bool:
        """Takes part in one meeting. Returns whether there is another one."""
        words: np.ndarray = np.zeros((self._ranks.size, _WORDS))
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_given or self._phase is Phase.LEAVING, self._pause_s()
            )
            gives, leaves = self._is_given, self._phase is Phase.LEAVING
            if gives:
                self._sum, self._movement = self._movement, self._sum
                self._is_given = self._sum_is_zero = False
            words[self._ranks.place] = (1, gives, leaves, self._steps, self._step_s)
        self._ranks.add_up(words)
        somebody_gives = bool(words[:, _GIVES].any())
        if somebody_gives:
            if not gives and not self._sum_is_zero:
                self._sum.fill(0)
            self._ranks.add_up(self._sum)
            self._sum_is_zero = False
        is_last = bool((words[:, _LEAVES] >= words[:, _PRESENT]).all())
        with self._changed:
            self._told = words
            if somebody_gives:
                self.shared += self._sum
            if gives:
                self._is_under_way = False
            if is_last:
                self._phase = Phase.RESTING
            self._changed.notify_all()
        return not is_last

    def _pause_s(self) -> float:
        """Returns how long the next meeting waits for this rank's step."""
        works = (self._told[:, _STEP_S] > 0) & (self._told[:, _LEAVES] == 0)
        if not works.any():
            return _PAUSE_S_AT_FIRST
        return float(np.clip(_PAUSE_STEPS * self._told[works, _STEP_S].min(), *_PAUSE_S))
