# SPDX-License-Identifier: Apache-2.0
"""Measures what a kill costs the ranks that go on, and what the return of the lost rank costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from harness import joins, recovery_log
from harness.figures import format_bytes, format_seconds, median, quantile
from harness.goodput import goodput_bytes_per_s
from harness.recovery_job import NODES, Job
from harness.recovery_log import Cost, Log
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section, noted

TITLE = "Kills and returns"
_GRADIENT_BYTES = 1 << 20
_LEASE_MS = 2000
_RANK_PROGRAM = "recovery_rank.py"
_TORCH_PROGRAM = "catch_up_rank.py"
# The fewest steps of all nodes between two kills.
_STEPS = 120
_PROCESS_LOSS_MAX_S = 0.1
_LARGE_STATE_BYTES = 400_000_000
_LARGE_STATE_LINK = 1000  # Mb/s
_ENTER_TIMES_MAX = 1.25
_SEED = 11


@dataclass
class Kind:
    """A kind of loss, and its measurements."""

    name: str
    survivors_cost: list[Cost] = field(default_factory=list)
    enter_s: list[float] = field(default_factory=list)
    whole: int = 0  # How many joiners have taken the whole state, while the others waited.

    @property
    def losses(self) -> list[float]:
        return [cost.loss_s for cost in self.survivors_cost]

    @property
    def rejoins(self) -> list[float]:
        return [cost.rejoin_s for cost in self.survivors_cost if cost.rejoin_s is not None]


_RANK, _AGENT, _AGGREGATOR = "rank", "agent", "aggregator"
_SCHEDULER, _HOST = "scheduler", "host cut off"
_KINDS = (_RANK, _AGENT, _AGGREGATOR, _SCHEDULER, _HOST)
# A rank of another job, which trains with torch and has a talweg.torch.Elastic.
_TORCH_RANK = "rank with torch"
# Losses that take the node's rank out of the job, or end its process.
_OF_A_NODE = (_RANK, _AGENT, _HOST, _TORCH_RANK)


class _Killer:
    """Kills processes of a job, one after another, each when the job has recovered."""

    def __init__(self, job: Job, random: Random) -> None:
        self._job = job
        self._random = random
        self._count = 0

    def kill(self, kind: Kind) -> None:
        victim = self._random.randrange(NODES)
        self._job.await_steps(_STEPS, time.monotonic_ns())
        time.sleep(self._random.uniform(0, 0.01))  # The kill comes at a random moment of a step.
        lasting = [node for node in range(NODES) if node != victim or kind.name not in _OF_A_NODE]
        logs = [self._job.log_of(node) for node in lasting]
        killed_ns = time.monotonic_ns()
        self._lose(kind.name, victim, logs)
        back_ns = time.monotonic_ns()
        self._job.await_steps(_STEPS, back_ns)
        kind.survivors_cost.append(self._worst(logs, killed_ns))
        if kind.name in _OF_A_NODE:
            came = self._job.log_of(victim)
            kind.whole += recovery_log.has_taken_whole(came.records)
            enter_s = recovery_log.enter_s(
                [record for record in came.records if record.end_ns > killed_ns]
            )
            if enter_s is not None:
                kind.enter_s.append(enter_s)

    def _lose(self, kind: str, victim: int, survivors: Sequence[Log]) -> None:
        job = self._job
        if kind in (_RANK, _TORCH_RANK):
            job.kill_rank(victim)
        elif kind == _AGENT:
            job.kill_agent(victim)
        elif kind == _SCHEDULER:
            job.restart_scheduler()
        elif kind == _AGGREGATOR:
            # Aggregators are killed in turn. One that has come back enters the view when the view
            # loses the next.
            self._count += 1
            job.kill_aggregator(self._count)
            job.await_epoch_after(survivors[0])
            job.start_aggregator(self._count)
        else:
            with job.cut_off(victim):
                job.await_epoch_after(survivors[0])

    def _worst(self, logs: Sequence[Log], killed_ns: int) -> Cost:
        """Returns the cost of the survivor that lost most."""
        costs = []
        for log in logs:
            log.read()
            before = log.last_steps(recovery_log.USUAL_STEPS, killed_ns)
            costs.append(recovery_log.cost(before, log.steps_since(killed_ns)))
        return Cost(
            median([cost.usual_s for cost in costs]),
            max(cost.loss_s for cost in costs),
            max((cost.rejoin_s for cost in costs if cost.rejoin_s is not None), default=None),
        )


def _kill_all(context: Context, kills: int, section: Section) -> list[Kind]:
    kinds = [Kind(name) for name in _KINDS]
    torchs = [Kind(_TORCH_RANK)]
    for program, arguments, of_job in (
        (_RANK_PROGRAM, (_GRADIENT_BYTES, 0), kinds),
        # Its state is the weights, its steps compute for no time.
        (_TORCH_PROGRAM, (_GRADIENT_BYTES, 0, 0), torchs),
    ):
        with Job(context.programs, program, arguments, _LEASE_MS) as job:
            killer = _Killer(job, Random(_SEED))
            for kind in of_job:
                for number in range(kills):
                    context.progress(f"{kind.name}: kill {number + 1} of {kills}")
                    killer.kill(kind)
            _check(job, section, context)
    return [*kinds, *torchs]


def _check(job: Job, section: Section, context: Context) -> None:
    if wrong := job.stop():
        section.failed = True
        context.notes.append(f"{TITLE}: {wrong}")


def _state_bytes(context: Context) -> int:
    return int(str(context.pick(1 << 20, 100_000_000, _LARGE_STATE_BYTES)))


def _large_state(context: Context, kills: int, section: Section) -> None:
    """Measures how long a joiner takes to get a large state over a link of a known rate."""
    state = _state_bytes(context)
    kind = Kind(_RANK)
    arguments = (_GRADIENT_BYTES, state)
    with Job(
        context.programs, _RANK_PROGRAM, arguments, 5 * _LEASE_MS, megabits_per_s=_LARGE_STATE_LINK
    ) as job:
        job.await_steps(_STEPS, 0)
        goodput = goodput_bytes_per_s(job.network, "node0", "node1", _LARGE_STATE_LINK)
        killer = _Killer(job, Random(_SEED))
        for number in range(kills):
            context.progress(f"{format_bytes(state)} of state: kill {number + 1} of {kills}")
            killer.kill(kind)
        _check(job, section, context)
    step_s = median([cost.usual_s for cost in kind.survivors_cost])
    least_s = state / goodput
    times = (median(kind.enter_s) - step_s) / least_s
    text = f"a joiner with {format_bytes(state)} of state enters: its time, less one step, over its transfer's"
    section.bars.append(Bar(text, f"<= {_ENTER_TIMES_MAX:g}", times, times <= _ENTER_TIMES_MAX))
    section.data["large_state"] = {
        "state_bytes": state,
        "goodput_bytes_per_s": goodput,
        "enter_s": kind.enter_s,
        "survivors_wait_s": kind.rejoins,
    }


def run(context: Context) -> Section:
    section = Section(TITLE)
    kills = int(str(context.pick(1, 10, 100)))
    kinds: list[Kind] = []
    with noted(context, section):
        kinds = _kill_all(context, kills, section)
        _large_state(context, int(str(context.pick(1, 2, 5))), section)
    if not kinds:
        return section
    section.bars = [*_bars(kinds), *section.bars]
    rows = [_row(kind) for kind in kinds]
    for kind in kinds:
        section.data[kind.name] = {
            "usual_s": [cost.usual_s for cost in kind.survivors_cost],
            "loss_s": kind.losses,
            "rejoin_s": kind.rejoins,
            "enter_s": kind.enter_s,
            "took_whole": kind.whole,
        }
    head = ["killed", "kills", "usual step", "loss p50", "p99", "return p50", "p99", "enters p50"]
    section.text = markdown_table(head, rows) + (
        f"\n{NODES} hosts with a rank each, two aggregators and a scheduler on a fourth; gradients of\n"
        f"{format_bytes(_GRADIENT_BYTES)} and as much state, a lease of "
        f"{format_seconds(_LEASE_MS * 1e-3)}. A loss costs the longest step of any survivor until\n"
        "the view without the killed process, less a usual step. A return costs the longest step until the\n"
        "view that has it again, less a usual step. A joiner's entry lasts from the start of its process\n"
        "to the end of its first step; the start of Python and of torch is not in it. Ranks with torch\n"
        "are those of another job, with a talweg.torch.Elastic: its joiners catch up beside the steps, so\n"
        "a return takes many of them. Each rank counts its steps in its weights: no step is lost, and\n"
        "none is done twice.\n"
    )
    with noted(context, section, ", joiners that catch up"):
        joins.add(context, _state_bytes(context), int(str(context.pick(1, 2, 5))), section)
    return section


def _quantiles(values: Sequence[float]) -> list[str]:
    if not values:
        return ["", ""]
    return [format_seconds(max(quantile(values, share), 0.0)) for share in (0.5, 0.99)]


def _row(kind: Kind) -> list[str]:
    usual = median([cost.usual_s for cost in kind.survivors_cost])
    return [
        kind.name,
        str(len(kind.survivors_cost)),
        format_seconds(usual),
        *_quantiles(kind.losses),
        *_quantiles(kind.rejoins),
        *_quantiles(kind.enter_s)[:1],
    ]


def _bars(kinds: Sequence[Kind]) -> list[Bar]:
    found = []
    for kind in kinds:
        wanted = _LEASE_MS * 1e-3 if kind.name == _HOST else _PROCESS_LOSS_MAX_S
        for what, values in (("loss", kind.losses), ("return", kind.rejoins)):
            if values and (what == "loss" or kind.name != _HOST):
                p99 = quantile(values, 0.99)
                text = f"{kind.name}: longest step at its {what}, p99 above a usual one, s"
                found.append(Bar(text, f"<= {wanted:g}", p99, p99 <= wanted))
    return found
