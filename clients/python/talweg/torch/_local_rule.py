# SPDX-License-Identifier: Apache-2.0
"""When local steps synchronise, and what a synchronisation does: docs/local_steps.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from talweg.errors import InvalidArgument

# Every so many synchronisations of a fragment compare what ranks have alike of it.
_COMPARED_EVERY = 8


def _refuse(caller: str, name: str, value: Any, wanted: str) -> None:
    raise InvalidArgument(f"{caller}: {name} is {value!r}; it must be {wanted}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Rule:
    """What all ranks have alike. Steps are counted from 1."""

    every: int
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    nesterov: bool = False
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0
    average_buffers: bool = True
    average_state: bool = False

    def require(self, caller: str, parameter_count: int) -> None:
        """Raises InvalidArgument, which begins with `caller`, if a value is out of its range."""
        if not _is_whole(self.every) or self.every < 1:
            _refuse(caller, "every", self.every, "a whole number of steps, at least 1")
        if not _is_number(self.outer_lr) or self.outer_lr <= 0:
            _refuse(caller, "outer_lr", self.outer_lr, "a number above 0")
        if not _is_number(self.outer_momentum) or not 0 <= self.outer_momentum < 1:
            _refuse(caller, "outer_momentum", self.outer_momentum, "at least 0, and below 1")
        most = min(self.every, parameter_count)
        if not _is_whole(self.fragments) or not 1 <= self.fragments <= most:
            limits = f"`every` ({self.every}) nor the number of parameters ({parameter_count})"
            _refuse(
                caller,
                "fragments",
                self.fragments,
                f"a whole number from 1, above neither {limits}",
            )
        if not _is_whole(self.delay) or not 0 <= self.delay < self.every:
            wanted = f"a whole number of steps, at least 0, and below `every` ({self.every})"
            _refuse(caller, "delay", self.delay, wanted)
        if not _is_number(self.mix) or not 0 <= self.mix < 1:
            _refuse(caller, "mix", self.mix, "at least 0, and below 1")
        for name in ("nesterov", "average_buffers", "average_state"):
            if not isinstance(getattr(self, name), bool):
                _refuse(caller, name, getattr(self, name), "True or False")

    def first_step(self, fragment: int) -> int:
        """Returns the step after which the fragment is sent for the first time."""
        return -(-(fragment + 1) * self.every // self.fragments)

    def sent_after(self, step: int) -> list[int]:
        """Returns the fragments that are sent after `step`."""
        firsts = ((fragment, self.first_step(fragment)) for fragment in range(self.fragments))
        return [f for f, first in firsts if step >= first and (step - first) % self.every == 0]

    def next_sent(self, step: int) -> int:
        """Returns the fragment that is the first to be sent after a later step than `step`."""
        return min(
            range(self.fragments), key=lambda each: (self.first_step(each) - step - 1) % self.every
        )

    def compares_shared(self, fragment: int, step: int) -> bool:
        """Whether ranks compare what they have alike of the fragment when it is sent after `step`."""
        return (step - self.first_step(fragment)) // self.every % _COMPARED_EVERY == 0

    def values(self) -> dict[str, Any]:
        return asdict(self)

    def difference(self, other: dict[str, Any]) -> tuple[str, str] | None:
        """Returns the texts of the values that differ: those here, and those of `other`."""
        own = self.values()
        names = [name for name in {**own, **other} if own.get(name) != other.get(name)]
        if not names:
            return None
        here, there = (
            ", ".join(f"{name}={each.get(name)!r}" for name in names) for each in (own, other)
        )
        return here, there


def cut(sizes: Sequence[int], count: int) -> list[range]:
    """Cuts a sequence of sizes into `count` parts of about equal sums. None of them is empty."""
    total, done, begin = sum(sizes), 0, 0
    parts: list[range] = []
    for part in range(count):
        end, left = begin + 1, count - part - 1
        done += sizes[begin]
        target = total * (part + 1) / count
        while end < len(sizes) - left and (left == 0 or done + sizes[end] / 2 <= target):
            done += sizes[end]
            end += 1
        parts.append(range(begin, end))
        begin = end
    return parts
