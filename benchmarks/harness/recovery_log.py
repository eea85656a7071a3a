# SPDX-License-Identifier: Apache-2.0
"""Reads the logs of recovery_rank.py, and computes from them what a kill has cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery_record import BEGINS, COMES, RECORD, STEP, WHOLE

from harness.figures import median

# The time of a usual step is the median of so many steps before the kill.
USUAL_STEPS = 100
# A loss is over so many steps after the view without the lost node.
_AFTER = 5


@dataclass(frozen=True)
class Record:
    what: int
    step: int
    begin_ns: int
    end_ns: int
    epoch: int
    size: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) * 1e-9


class Log:
    """The log of one process of a rank so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.node, self.pid = (int(each) for each in path.name.split("."))
        self.records: list[Record] = []

    def read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = len(new) - len(new) % RECORD.size
        self._offset += whole
        self.records += (Record(*fields) for fields in RECORD.iter_unpack(new[:whole]))

    def last_steps(self, count: int, until_ns: int) -> list[Record]:
        """Returns the last `count` steps that had ended by `until_ns`, in their order."""
        found: list[Record] = []
        for record in reversed(self.records):
            if len(found) == count:
                break
            if record.what == STEP and record.end_ns <= until_ns:
                found.append(record)
        return found[::-1]

    def steps_since(self, begin_ns: int) -> list[Record]:
        """Returns the steps that ended after `begin_ns`, in their order."""
        found = []
        for record in reversed(self.records):
            if record.end_ns <= begin_ns:
                break
            if record.what == STEP:
                found.append(record)
        return found[::-1]


@dataclass(frozen=True)
class Cost:
    """The seconds above usual steps that a kill cost a survivor; None if no view told of it."""

    usual_s: float
    loss_s: float
    rejoin_s: float | None


def cost(before: Sequence[Record], after: Sequence[Record]) -> Cost:
    """Returns the cost of a kill. `before` are the steps that had ended then, `after` those since.

    The steps up to the first one with a newer epoch, and a few more, belong to the loss. Those from
    the next newer epoch on belong to the return of the killed process, until all ranks are there
    again, and a few more. A node that catches up comes into the view first, and into steps later.
    """
    usual_s = median([record.seconds for record in before[-USUAL_STEPS:]])
    changes = _changes(before[-1].epoch, after)
    first = changes[0] if changes else len(after)
    second = changes[1] if len(changes) > 1 else len(after)
    loss = after[: min(first + 1 + _AFTER, second)]
    back = next(
        (at for at in range(second, len(after)) if after[at].size >= before[-1].size), second
    )
    rejoin = after[second : back + 1 + _AFTER]
    return Cost(
        usual_s,
        max(record.seconds for record in loss) - usual_s,
        max(record.seconds for record in rejoin) - usual_s if rejoin else None,
    )


def _changes(epoch: int, records: Sequence[Record]) -> list[int]:
    """Returns the places of the records whose epoch differs from that of the record before."""
    found = []
    for place, record in enumerate(records):
        if record.epoch != epoch:
            found.append(place)
            epoch = record.epoch
    return found


def enter_s(records: Sequence[Record]) -> float | None:
    """Returns the time from a joiner's start to the end of its first step, if that has ended."""
    came_ns = None
    for record in records:
        if record.what == COMES:
            came_ns = record.end_ns
        elif record.what == STEP and came_ns is not None:
            return (record.end_ns - came_ns) * 1e-9
    return None


@dataclass(frozen=True)
class Join:
    """The time that a joiner took to enter, and what it cost a survivor."""

    enter_s: float
    usual_s: float  # The survivor's usual step before.
    longest_s: float  # The survivor's longest step, up to a few steps after the entry.
    steps: int  # How many steps the survivor ended until the entry.

    @property
    def pause_steps(self) -> float:
        """Returns how many usual steps the longest step has lost."""
        return self.longest_s / self.usual_s - 1


def join(joiner: Sequence[Record], survivor: Sequence[Record], size: int) -> Join:
    """Returns the joiner's first entry, if there is one. `size` is the number of ranks with it."""
    came_ns = next(record.end_ns for record in joiner if record.what == COMES)
    began_ns = next(record.end_ns for record in joiner if record.what == BEGINS)
    steps = [record for record in survivor if record.what == STEP]
    before = [each for each in steps if each.end_ns <= came_ns and each.size == size - 1]
    after = [each for each in steps if each.end_ns > came_ns]
    entered = next(place for place, each in enumerate(after) if each.size == size)
    return Join(
        (began_ns - came_ns) * 1e-9,
        median([each.seconds for each in before[-USUAL_STEPS:]]),
        max(each.seconds for each in after[: entered + 1 + _AFTER]),
        sum(each.end_ns <= began_ns for each in after),
    )


def has_taken_whole(joiner: Sequence[Record]) -> bool:
    return any(record.what == WHOLE for record in joiner)


def wrong_order(log: Log) -> str:
    """Returns a text about a step that does not follow the step before; empty if all do."""
    last = None
    for record in log.records:
        if record.what == STEP and last is not None and record.step != last + 1:
            return f"a rank of node {log.node} ended step {record.step} after step {last}"
        if record.what in (BEGINS, STEP):
            last = record.step
    return ""
