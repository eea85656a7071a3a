# SPDX-License-Identifier: Apache-2.0
"""Calls that frameworks register for the end of a step, and for a change of ranks' numbers."""

from __future__ import annotations

from collections.abc import Callable

from talweg._calls import Calls

# Each finishes the framework's work that belongs to the current step.
finishers = Calls()


def call_at_end_of_step(call: Callable[[], None]) -> None:
    """Registers `call` for the end of a step of this rank, before other ranks hear of the end.
    `call` returns when the step has no round open, and none to come. A method is called as long as
    its object lives.
    """
    finishers.add(call)


# Each renews what a framework has computed from ranks' numbers.
counters = Calls()


def call_when_numbers_change(call: Callable[[], None]) -> None:
    """Registers `call` for when ranks have got other numbers. A method is called as long as its
    object lives.
    """
    counters.add(call)
