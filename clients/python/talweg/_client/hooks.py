# SPDX-License-Identifier: Apache-2.0
"""What frameworks have called where steps end, and where ranks get other numbers."""

from __future__ import annotations

from collections.abc import Callable

from talweg._calls import Calls

# What finishes a step that a framework has under way.
finishers = Calls()


def call_at_end_of_step(call: Callable[[], None]) -> None:
    """Has it called where this rank ends a step, before the others hear of that: it returns when
    the step has no round open, and none to come. A method as long as its object lives.
    """
    finishers.add(call)


# What a framework has made of ranks' numbers.
counters = Calls()


def call_when_numbers_change(call: Callable[[], None]) -> None:
    """Has it called when ranks have got other numbers. A method as long as its object lives."""
    counters.add(call)
