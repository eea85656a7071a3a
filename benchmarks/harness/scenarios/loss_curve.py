# SPDX-License-Identifier: Apache-2.0
"""Compares what a job learns while processes are killed and come back with undisturbed runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from harness.contender import ContenderFailed
from harness.figures import median
from harness.recovery_job import NODES, Job
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section, noted

TITLE = "What is learned between kills"
_LEASE_MS = 2000
_SEED = 5
_QUIET_RUNS = 5
# The fewest steps of all nodes between two kills.
_STEPS_BETWEEN = 40
# A point of the curve is the mean of so many steps.
_SMOOTH = 200


@dataclass(frozen=True)
class _Curve:
    losses: dict[int, float]  # By step.
    accuracy: float
    kills: list[int]  # The steps in which kills came while it learned.

    @property
    def final(self) -> float:
        last = max(self.losses)
        return median([self.losses[step] for step in range(last - _SMOOTH + 1, last + 1)])


def _read(directory: Path, kills: list[int]) -> _Curve:
    losses: dict[int, float] = {}
    accuracy = 0.0
    for path in directory.glob("losses.*"):
        for line in path.read_text().splitlines():
            name, value = line.split()
            if name == "accuracy":
                accuracy = float(value)
            elif abs(losses.setdefault(int(name), float(value)) - float(value)) > 0:
                raise ContenderFailed(f"step {name} has two losses at its ranks")
    return _Curve(losses, accuracy, kills)


def _run(context: Context, seed: int, steps: int, kills: int) -> _Curve:
    arguments = (seed, steps)
    random = Random(_SEED)
    at: list[int] = []
    with Job(context.programs, "loss_curve_rank.py", arguments, _LEASE_MS) as job:
        for number in range(kills):
            context.progress(f"kill {number + 1} of {kills}")
            job.await_steps(_STEPS_BETWEEN, time.monotonic_ns())
            node = random.randrange(NODES)
            at.append(job.log_of(node).records[-1].step)
            random.choice((job.kill_rank, job.kill_agent))(node)
        job.await_step(steps)
        job.await_steps(_STEPS_BETWEEN, time.monotonic_ns())
        if wrong := job.stop():
            raise ContenderFailed(wrong)
        return _read(job.directory, [step for step in at if step < steps])


def run(context: Context) -> Section:
    section = Section(TITLE)
    steps = int(str(context.pick(1000, 20_000, 40_000)))
    kills = int(str(context.pick(1, 10, 20)))
    curves: list[_Curve] = []
    with noted(context, section):
        curves.append(_run(context, 0, steps, kills))
        for seed in range(int(str(context.pick(2, _QUIET_RUNS, _QUIET_RUNS)))):
            context.progress(f"undisturbed run {seed + 1}")
            curves.append(_run(context, seed, steps, 0))
    if len(curves) < 2:
        return section
    disturbed, *quiet = curves
    finals = [curve.final for curve in quiet]
    low, high = min(finals), max(finals)
    # Losses count as noise up to the width of the undisturbed runs' range outside of that range.
    wide = high - low
    holds = low - wide <= disturbed.final <= high + wide
    text = (
        f"loss at the end after {len(disturbed.kills)} kills, "
        f"within the noise of {len(quiet)} undisturbed runs"
    )
    wanted = f"{low - wide:.4g} to {high + wide:.4g}"
    section.bars.append(Bar(text, wanted, disturbed.final, holds))
    names = [f"undisturbed, seed {seed}" for seed in range(len(quiet))]
    rows = [
        [name, str(len(curve.kills)), f"{curve.final:.4g}", f"{curve.accuracy:.2%}"]
        for name, curve in zip(["killed, seed 0", *names], [disturbed, *quiet], strict=True)
    ]
    section.text = markdown_table(["run", "kills", "loss at the end", "test accuracy"], rows) + (
        f"\n{NODES} hosts with a rank each learn scikit-learn's digits in {steps} steps of at most 48\n"
        "samples. Kills hit ranks and agents, one after another, as soon as all nodes are there again.\n"
    )
    section.data = {
        "steps_in_a_point": _SMOOTH,
        "killed": {"losses": _smoothed(disturbed), "kills": disturbed.kills},
        "undisturbed": [_smoothed(curve) for curve in quiet],
    }
    section.draw = lambda path: _draw(disturbed, quiet, path)
    return section


def _smoothed(curve: _Curve) -> tuple[list[int], list[float]]:
    ends = range(_SMOOTH, max(curve.losses) + 1, _SMOOTH)
    means = [
        sum(curve.losses[step] for step in range(end - _SMOOTH + 1, end + 1)) / _SMOOTH
        for end in ends
    ]
    return list(ends), means


def _draw(disturbed: _Curve, quiet: Sequence[_Curve], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for number, curve in enumerate(quiet):
        label = "undisturbed, other seeds" if number == 1 else None
        if number == 0:
            label = "undisturbed, same seed"
        axes.plot(*_smoothed(curve), color="black" if number == 0 else "0.7", label=label)
    axes.plot(*_smoothed(disturbed), color="tab:red", linewidth=2, label="killed")
    for number, step in enumerate(disturbed.kills):
        label = "a kill" if number == 0 else None
        axes.axvline(step, color="tab:red", alpha=0.3, linewidth=0.8, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
