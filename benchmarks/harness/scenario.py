# SPDX-License-Identifier: Apache-2.0
"""The Context that scenarios get, and the Section that they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netns import NotPermitted

from harness.contender import Contender, ContenderFailed
from harness.contenders import Missing, Programs
from harness.measure import Case, Effort, Result, measure_beside
from harness.report import Bar

# From shortest to longest. A scenario picks its cases by the mode.
MODES = ("smoke", "quick", "default", "full")


@dataclass
class Context:
    programs: Programs
    mode: str
    effort: Effort
    progress: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def pick(self, smoke: object, quick: object, default: object, full: object = None) -> object:
        """Returns the value for the mode. `full` is `default` unless it is given."""
        index = MODES.index(self.mode)
        return (smoke, quick, default, default if full is None else full)[index]


@dataclass
class Section:
    """The outcome of a scenario."""

    title: str
    results: list[Result] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    text: str = ""  # Markdown, below the tables.
    data: dict[str, Any] = field(default_factory=dict)  # For the JSON, in addition to results.
    failed: bool = False  # Whether it failed although no single result has failed.
    # Draws the scenario's own plot into a file.
    draw: Callable[[Path], None] | None = None

    @property
    def has_failed(self) -> bool:
        return self.failed or any(result.failure for result in self.results)


@contextmanager
def noted(context: Context, section: Section, part: str = "") -> Iterator[None]:
    """A context after which the bench goes on if the section could not be measured.

    It notes the reason. `part` names a part of the section, such as " in jobs".
    """
    try:
        yield
    except NotPermitted as refusal:
        context.notes.append(f"{section.title}{part} is left out: {refusal}")
    except ContenderFailed as failure:
        context.notes.append(f"{section.title}{part}: {failure}")
        section.failed = True


Make = Callable[[], Contender]


def run_beside(
    context: Context,
    scenario: str,
    setting: str,
    makers: Sequence[tuple[str, Make]],
    rank_count: int,
    cases: Sequence[Case],
) -> list[Result]:
    """Starts the contenders that can run here, measures and ends them. Returns the results."""
    with ExitStack() as stack:
        contenders = []
        failed = []
        for name, make in makers:
            context.progress(f"{setting}: {name} starts")
            try:
                contenders.append(stack.enter_context(make()))
            except Missing as missing:
                context.notes.append(f"{name} is left out: {missing}")
            except ContenderFailed as failure:
                context.notes.append(f"{setting}: {failure}")
                failed.append((name, str(failure)))
        results = measure_beside(
            scenario, setting, contenders, rank_count, cases, context.effort, context.progress
        )
    context.notes += dict.fromkeys(
        f"{setting}, {result.case}: {result.failure}" for result in results if result.failure
    )
    for name, text in failed:
        for case in cases:
            size, count = case.total_bytes, len(case.tensor_bytes)
            result = Result(
                scenario, setting, case.label, name, case.dtype, rank_count, count, size
            )
            result.failure = text
            results.append(result)
    return results


def find(results: Sequence[Result], setting: str, case: str, contender: str) -> Result | None:
    """Returns the result of that case, if it has figures."""
    for result in results:
        if (result.setting, result.case, result.contender) == (setting, case, contender):
            return None if result.failure else result
    return None


def fastest(
    results: Sequence[Result], setting: str, case: str, contenders: Sequence[str]
) -> Result | None:
    """Returns the result with the most bytes a second, among those that have figures."""
    there = [find(results, setting, case, contender) for contender in contenders]
    return max(
        (each for each in there if each is not None),
        key=lambda each: each.gigabytes_per_s_median,
        default=None,
    )


def ratio_bar(
    text: str,
    one: Result | None,
    other: Result | None,
    wanted: float,
    of: Callable[[Result], float],
    at_most: bool = False,
) -> Bar:
    """Returns a bar: of(one) / of(other) must be at least `wanted`, or at most with `at_most`."""
    sign = "<=" if at_most else ">="
    label = f"{sign} {wanted:g}"
    if one is None or other is None or not of(other):
        return Bar(text, label, None, False)
    measured = of(one) / of(other)
    return Bar(text, label, measured, measured <= wanted if at_most else measured >= wanted)
