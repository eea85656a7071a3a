# SPDX-License-Identifier: Apache-2.0
"""Compares rounds over links of a known rate with the least time that such links allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from netns import NotPermitted

from harness.contender import ContenderFailed
from harness.figures import parse_bytes
from harness.measure import Result
from harness.scenario import Context, find


class _HasSetting(Protocol):
    @property
    def setting(self) -> str: ...


_Links = TypeVar("_Links", bound=_HasSetting)


def rate_text(megabits_per_s: int) -> str:
    return f"{megabits_per_s} Mb/s" if megabits_per_s < 1000 else "1 Gb/s"


def measure_each(
    context: Context,
    title: str,
    cases: Sequence[tuple[_Links, str]],
    run: Callable[[_Links, int], list[Result]],
) -> Iterator[tuple[_Links, list[Result]]]:
    """Runs each case of links and a size. The notes say why a case could not be measured."""
    for links, size in cases:
        try:
            results = run(links, parse_bytes(size))
        except NotPermitted as refusal:
            context.notes.append(f"{title} is left out: {refusal}")
            return
        except ContenderFailed as failure:
            context.notes.append(f"{links.setting}: {failure}")
            continue
        yield links, results


def add_optimum(
    results: Sequence[Result], goodput_bytes_per_s: float, best_s: float
) -> list[Result]:
    """Adds the optimum to each result. Returns the results that have figures."""
    for result in results:
        result.extra["goodput_bytes_per_s"] = goodput_bytes_per_s
        result.extra["optimum_s"] = best_s
    return [result for result in results if not result.failure]


def table_row(
    setting: str, results: Sequence[Result], contenders: Sequence[str], ratio: str
) -> list[str]:
    """Returns the cells of a row: the links, what they allow, and what each contender reached."""
    case, extra = results[0].case, results[0].extra
    cells = [setting, case, f"{extra['goodput_bytes_per_s'] * 1e-6:.4g}"]
    cells.append(f"{extra['optimum_s']:.3f} s")
    for contender in contenders:
        result = find(results, setting, case, contender)
        cells += [f"{result.median_s:.3f} s", f"{result.extra[ratio]:.3f}"] if result else ["", ""]
    return cells
