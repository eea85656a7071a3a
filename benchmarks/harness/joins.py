# SPDX-License-Identifier: Apache-2.0
"""Measures joiners that catch up beside the others' steps: their time, and the others' cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness import recovery_log
from harness.contender import ContenderFailed
from harness.figures import format_bytes, format_seconds, median
from harness.goodput import goodput_bytes_per_s
from harness.recovery_job import NODES, Job
from harness.recovery_log import Log
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section

_RANK_PROGRAM = "catch_up_rank.py"
_LEASE_MS = 10_000
_LINK = 1000  # Mb/s
# How many steps all nodes make before the next node is lost.
_STEPS = 20
_ENTER_TIMES_MAX = 1.25
_SHARE_MIN = 0.8
_PAUSE_STEPS_MAX = 1.0


@dataclass(frozen=True)
class Load:
    """The load of the steps beside which a joiner catches up."""

    name: str
    gradient_bytes: int


_COMPUTE_MS = 100
# With the first load gradients leave nearly all of the link free, with the other about half.
_LIGHT = Load("light steps", 256 << 10)
_HEAVY = Load("heavy steps", 4 << 20)


@dataclass(frozen=True)
class Measured:
    """The joins beside one load."""

    load: Load
    state_bytes: int
    goodput_bytes_per_s: float
    joins: list[recovery_log.Join]

    @property
    def least_s(self) -> float:
        """Returns the time that the state's bytes need on the link."""
        return self.state_bytes / self.goodput_bytes_per_s

    def times(self, join: recovery_log.Join) -> float:
        """Returns the time to the entry, less one step, as a multiple of least_s()."""
        return (join.enter_s - join.usual_s) / self.least_s

    def share(self, join: recovery_log.Join) -> float:
        """Returns the share of the server's link that carried the state and the log.

        It is a share of what gradients left free. That link carries in each direction the
        survivors' gradients, and one copy of what the joiner gets.
        """
        gradients = join.steps * self.load.gradient_bytes
        left = self.goodput_bytes_per_s * join.enter_s - (NODES - 1) * gradients
        return (self.state_bytes + gradients) / left


def _join(job: Job, victim: int) -> recovery_log.Join:
    """Kills a node's rank. Returns its join when it has entered again."""
    job.await_steps(_STEPS, time.monotonic_ns())
    survivors = [job.log_of(node) for node in range(NODES) if node != victim]
    killed_ns = time.monotonic_ns()
    job.kill_rank(victim)
    job.await_steps(_STEPS, time.monotonic_ns())
    joiner = job.log_of(victim)
    if joiner.records[0].end_ns < killed_ns or recovery_log.has_taken_whole(joiner.records):
        raise ContenderFailed(f"node {victim}'s joiner took the whole state: {job.said(victim)}")
    return _worst(joiner, survivors)


def _worst(joiner: Log, survivors: Sequence[Log]) -> recovery_log.Join:
    """Returns the join as the survivor with the longest step has seen it."""
    found = []
    for log in survivors:
        log.read()
        found.append(recovery_log.join(joiner.records, log.records, NODES))
    return max(found, key=lambda join: join.longest_s)


def _measure(context: Context, load: Load, state: int, count: int, section: Section) -> Measured:
    arguments = (load.gradient_bytes, state, _COMPUTE_MS)
    with Job(context.programs, _RANK_PROGRAM, arguments, _LEASE_MS, megabits_per_s=_LINK) as job:
        job.await_steps(_STEPS, 0)
        goodput = goodput_bytes_per_s(job.network, "node0", "node1", _LINK)
        joins = []
        for number in range(count):
            context.progress(f"{load.name}, {format_bytes(state)}: join {number + 1} of {count}")
            joins.append(_join(job, number % NODES))
        if wrong := job.stop():
            section.failed = True
            context.notes.append(f"{section.title}: {wrong}")
    return Measured(load, state, goodput, joins)


def add(context: Context, state: int, count: int, section: Section) -> None:
    """Measures joins, and adds a table and bars to the section."""
    measured = [_measure(context, load, state, count, section) for load in (_LIGHT, _HEAVY)]
    rows = [_row(each) for each in measured]
    head = ["joins beside", "joins", "usual step", "longest", "steps meanwhile", "enters"]
    head += ["bytes alone", "times", "share of the rest", "pause in steps"]
    gradients = " or ".join(format_bytes(each.load.gradient_bytes) for each in measured)
    section.text += "\n" + markdown_table(head, rows)
    section.text += (
        f"\nA joiner takes {format_bytes(state)} over links of {_LINK} Mb/s while the others go on: "
        f"steps compute for {_COMPUTE_MS} ms\nand have gradients of {gradients}. It enters from the "
        "call of its begin() until that returns.\n`bytes alone`: the time that the state's bytes "
        "need on that link. `times`: the joiner's time, less\na usual step, divided by `bytes "
        "alone`. `share of the rest`: gradients leave a part of the link free;\nthis share of it "
        "carries the state and the steps made since. `pause in steps`: the time that a\nsurvivor's "
        "longest step loses, from the joiner's begin() to some steps after its entry, divided by a\n"
        "usual step. The figures are medians, and the largest value of a pause.\n"
    )
    light, heavy = measured
    times = median([light.times(join) for join in light.joins])
    share = median([heavy.share(join) for join in heavy.joins])
    size = format_bytes(state)
    section.bars += [
        Bar(
            f"a joiner that catches up with {size}: its time, less one step, over its transfer's",
            f"<= {_ENTER_TIMES_MAX:g}",
            times,
            times <= _ENTER_TIMES_MAX,
        ),
        Bar(
            f"a joiner that catches up with {size}: its share of what gradients leave of the link",
            f">= {_SHARE_MIN:g}",
            share,
            share >= _SHARE_MIN,
        ),
        *(_pause_bar(each) for each in measured),
    ]
    section.data["catching_up"] = {each.load.name: _data(each) for each in measured}


def _pause_bar(measured: Measured) -> Bar:
    pause = max(join.pause_steps for join in measured.joins)
    return Bar(
        f"a joiner that catches up with {format_bytes(measured.state_bytes)} beside "
        f"{measured.load.name}: the longest pause of a survivor, in usual steps",
        f"<= {_PAUSE_STEPS_MAX:g}",
        pause,
        pause <= _PAUSE_STEPS_MAX,
    )


def _data(measured: Measured) -> dict[str, object]:
    joins = measured.joins
    return {
        "state_bytes": measured.state_bytes,
        "gradient_bytes": measured.load.gradient_bytes,
        "goodput_bytes_per_s": measured.goodput_bytes_per_s,
        "usual_s": [join.usual_s for join in joins],
        "longest_s": [join.longest_s for join in joins],
        "enter_s": [join.enter_s for join in joins],
        "steps": [join.steps for join in joins],
        "share": [measured.share(join) for join in joins],
        "pause_steps": [join.pause_steps for join in joins],
    }


def _row(measured: Measured) -> list[str]:
    joins = measured.joins
    return [
        measured.load.name,
        str(len(joins)),
        format_seconds(median([join.usual_s for join in joins])),
        format_seconds(max(join.longest_s for join in joins)),
        f"{median([join.steps for join in joins]):g}",
        format_seconds(median([join.enter_s for join in joins])),
        format_seconds(measured.least_s),
        f"{median([measured.times(join) for join in joins]):.3g}",
        f"{median([measured.share(join) for join in joins]):.0%}",
        f"{max(join.pause_steps for join in joins):.2f}",
    ]
