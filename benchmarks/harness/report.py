# SPDX-License-Identifier: Apache-2.0
"""Writes results as JSON, as a Markdown page, and as a plot of each curve."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.figures import format_bytes, format_seconds
from harness.measure import Result

_SUBJECT = "Talweg"


@dataclass(frozen=True)
class Bar:
    """A target, and what was measured; `measured` is None if this run has not measured it."""

    text: str
    wanted: str
    measured: float | None
    holds: bool

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        return "holds" if self.holds else "DOES NOT HOLD"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def result_row(result: Result, subject: Result | None) -> list[str]:
    if result.failure:
        return [result.case, result.contender, "failed", "", "", "", "", "", "", ""]
    spread = f"{min(result.gigabytes_per_s):.3g}-{max(result.gigabytes_per_s):.3g}"
    wire = result.wire_bytes_per_round
    ratio = subject.ratios.get(result.contender) if subject else None
    return [
        result.case,
        result.contender,
        f"{result.gigabytes_per_s_median:.3g}",
        spread,
        format_seconds(result.median_s),
        format_seconds(result.p99_s),
        f"{result.cpu_s_per_gigabyte:.3g}",
        "" if wire is None else format_bytes(round(wire)),
        format_bytes(result.memory_bytes) if result.memory_bytes else "",
        "" if ratio is None else f"{ratio:.2f}",
    ]


_HEAD = [
    "case",
    "who",
    "GB/s a worker",
    "lowest-highest",
    "median",
    "p99",
    "CPU s/GB",
    "wire a round",
    "memory held",
    "Talweg / it",
]


def tables(results: Sequence[Result]) -> str:
    """Returns one table for each setting, in the order of the results."""
    text = ""
    for setting in dict.fromkeys(result.setting for result in results):
        rows = []
        here = [result for result in results if result.setting == setting]
        for result in here:
            subject = next(
                (r for r in here if r.case == result.case and r.contender == _SUBJECT), None
            )
            rows.append(result_row(result, subject))
        text += f"### {setting}\n\n" + markdown_table(_HEAD, rows) + "\n"
    return text


def bars_table(bars: Sequence[Bar]) -> str:
    rows = [
        [bar.text, bar.wanted, "" if bar.measured is None else f"{bar.measured:.3g}", bar.verdict]
        for bar in bars
    ]
    return markdown_table(["bar", "wanted", "measured", ""], rows)


def page(document: dict[str, Any], sections: Sequence[tuple[str, str]]) -> str:
    """Returns the whole Markdown page: machine and programs, then each scenario's text."""
    machine = document["machine"]
    rows = [
        ["command", f"`{document['command']}`"],
        ["date", document["date"]],
        ["commit", machine["commit"]],
        ["machine", f"{machine['cores']} cores of {machine['cpu']}, kernel {machine['kernel']}"],
        ["memory", format_bytes(machine["memory_bytes"])],
        ["congestion control", document["congestion_control"]],
        ["peers", f"torch {machine['torch']} (Gloo), {machine['openmpi'] or 'no OpenMPI'}"],
        ["repetitions", str(document["repetitions"])],
        ["load when it began", f"{machine['load_at_start']:.2f}"],
    ]
    text = "# Measured by ./bench\n\n" + markdown_table(["", ""], rows) + "\n"
    text += (
        "GB = 1e9 bytes of gradient. GB/s is what each worker gets: the median of all repetitions.\n"
        "Contenders take turns. CPU is user and system time of all processes for a GB of all workers'\n"
        "gradients. Wire is what all interfaces send. Memory is the growth since the start of the\n"
        "processes, with shared memory counted once.\n\n"
    )
    for title, body in sections:
        text += f"## {title}\n\n{body}\n"
    return text


def plot_curves(results: Sequence[Result], title: str, path: Path) -> bool:
    """Draws GB/s over size, with a panel for each setting. Returns False if there is no curve."""
    settings = [
        setting
        for setting in dict.fromkeys(result.setting for result in results)
        if len({r.total_bytes for r in results if r.setting == setting}) > 2
    ]
    if not settings:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(settings), figsize=(5.5 * len(settings), 4.2), layout="constrained", squeeze=False
    )
    for axes, setting in zip(panels[0], settings):
        here = [r for r in results if r.setting == setting and r.gigabytes_per_s]
        for contender in dict.fromkeys(result.contender for result in here):
            points = sorted(
                (r.total_bytes, r.gigabytes_per_s_median) for r in here if r.contender == contender
            )
            strong = contender == _SUBJECT
            axes.plot(
                [size for size, _ in points],
                [speed for _, speed in points],
                marker="o",
                markersize=4,
                linewidth=2.4 if strong else 1.2,
                label=contender,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("bytes of gradient")
        axes.set_title(setting)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    panels[0][0].set_ylabel("GB/s a worker")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def write_json(document: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")
