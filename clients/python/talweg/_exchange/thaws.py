# SPDX-License-Identifier: Apache-2.0
"""Tells ranks whether one of them has thawed a parameter, where rounds leave late ranks out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from talweg import _interrupts
from talweg._exchange.adapter import Adapter


class Thaws:
    """Which parameters ranks have thawed since they compared them.

    Steps that leave late ranks out exchange no marks. So a rank that thaws a parameter alone would
    wait for its average without end. While a parameter is frozen, each step has one round more, the
    sum of a number for each parameter: 1 in the step in which this rank has thawed it. That round
    leaves late ranks out, too, and all ranks get the same result. If it is not 0, all of them
    compare their parameters at once, in a round that waits for all.

    A rank that is left out, and has thawed a parameter, gets 0 for it: then no other rank has
    thawed it in that step. It makes further rounds until its own number has come with one of them.

        QUIET --begin()--> OPEN --finish(): all numbers are 0, and none is owed--> QUIET
                            | ^--the same, and this rank's own is owed: another round--|
                            +--finish(): a number is not 0--> QUIET, and ranks compare
    """

    def __init__(self, adapter: Adapter, name: str) -> None:
        """`name` is the exchange's."""
        self._adapter, self._name = adapter, name
        self._frozen: frozenset[int] = frozenset()  # In the last step.
        self._new: set[int] = set()  # Thawed since then.
        self._ticket: Any = None  # The open round, its numbers, and the rest of what starts it.
        self._numbers: np.ndarray = np.zeros(0)
        self._suffix, self._priority = "", 0
        self._is_owed = False

    def on_thawed(self, indices: Iterable[int]) -> None:
        """This rank has thawed these. What has never been frozen in a step does not count."""
        self._new.update(self._frozen.intersection(indices))

    def on_compared(self, frozen: Collection[int]) -> None:
        """All ranks compare which parameters are frozen in this step anyway."""
        self._frozen, self._new = frozenset(frozen), set()

    def begin(self, suffix: str, count: int, frozen: Collection[int], priority: int) -> None:
        """Begins the step's round if there are frozen parameters, or were before it."""
        with _interrupts.held:
            if frozen or self._new:
                numbers: np.ndarray = np.zeros(count, np.float64)
                numbers[list(self._new)] = 1.0
                self._is_owed = bool(self._new)
                self._suffix, self._priority = suffix, priority
                self._start(numbers)
            self.on_compared(frozen)

    def _start(self, numbers: np.ndarray) -> None:
        self._numbers = numbers
        name = f"{self._name}.thawed{self._suffix}"
        self._ticket = self._adapter.start_sum(name, numbers, self._priority)

    def finish(self) -> bool:
        """Waits for the round that is open. Returns whether ranks have to compare."""
        while self._ticket is not None:
            with _interrupts.held:
                self._adapter.finish(self._ticket)
                self._ticket = None
                if self._numbers.any():
                    self._is_owed = False
                    return True
                if self._is_owed:
                    self._start(np.zeros_like(self._numbers))
        return False

    def begin_anew(self) -> None:
        """The rounds are gone with the client that had them."""
        self._ticket, self._frozen, self._new = None, frozenset(), set()
