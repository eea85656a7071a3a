# SPDX-License-Identifier: Apache-2.0
"""Measures the first GPU as the agent uses it: copies, sums and the way to a second GPU."""

from __future__ import annotations

from harness import google_benchmark
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section

TITLE = "A GPU"
_BOTH_WAYS_OF_BUS = 0.9
_REDUCE_OF_MEMORY = 0.8
_SECONDS = {"smoke": 0.001, "quick": 0.05, "default": 0.1, "full": 0.5}


def run(context: Context) -> Section:
    section = Section(TITLE)
    context.progress("one benchmark after the other, in random turns")
    try:
        document = google_benchmark.run(
            context.programs.device_benchmark,
            context.effort.repetitions,
            _SECONDS[context.mode],
            *(["--fake"] if context.mode == "smoke" else []),
        )
    except google_benchmark.BenchmarkFailed as failure:
        context.notes.append(f"{TITLE}: {failure}")
        section.failed = True
        return section
    speeds = google_benchmark.medians(document)
    speeds = {name: speed for name, speed in speeds.items() if speed}
    events_us = google_benchmark.medians(document, "real_time").get("Event", 0.0)
    for name, why in google_benchmark.failures(document).items():
        context.notes.append(f"{TITLE}: {name}: {why}")
        section.failed = True
    gpu = document["context"].get("gpu", "")
    section.data = {"gpu": gpu, "bytes_per_s": speeds, "event_us": events_us}
    section.bars = bars(speeds)
    section.text = (
        f"{gpu}. Bytes a second: moved over the bus, touched in the GPU's memory, copied to the second GPU (Peer),\n"
        "or copied there and back at once (PeerBothWays). The figures are medians of all repetitions. Time runs\n"
        "from the first post until the last event is seen done. Streams have high priority, and host memory is\n"
        f"pinned. An event alone takes {events_us:.1f} us. Every figure includes that time.\n\n"
    ) + table(speeds)
    return section


def _limit(speeds: dict[str, float], name: str) -> tuple[str, float] | None:
    """Returns what limits a figure, as a text and as bytes a second; None if nothing is known."""
    kind = name.partition("/")[0]
    down, up = _of(speeds, "Down"), _of(speeds, "Up")
    if kind in ("AtOnce", "BothWays") and down and up:
        return "both directions alone", down + up
    peer = _of(speeds, "Peer")
    if kind == "PeerBothWays" and peer:
        return "twice one direction alone", 2 * peer
    copy = _of(speeds, "Copy")
    if kind == "Reduce" and copy:
        return "a copy in the GPU's memory", copy
    return None


def _of(speeds: dict[str, float], kind: str) -> float | None:
    return next((speed for name, speed in speeds.items() if name.startswith(f"{kind}/")), None)


def table(speeds: dict[str, float]) -> str:
    rows = []
    for name, speed in speeds.items():
        limit = _limit(speeds, name)
        row = [name, f"{speed * 1e-9:.1f}"]
        row += [f"{speed / limit[1]:.2f}", limit[0]] if limit else ["", ""]
        rows.append(row)
    return markdown_table(["what / bytes", "GB/s", "of its limit", "limit"], rows)


def bars(speeds: dict[str, float]) -> list[Bar]:
    """Returns bars of ratios: slices in both directions at once to each direction alone, and the
    slowest sum to a copy.
    """
    found = []
    for kind, wanted in (("BothWays", _BOTH_WAYS_OF_BUS), ("Reduce", _REDUCE_OF_MEMORY)):
        named = {name: speed for name, speed in speeds.items() if name.startswith(f"{kind}/")}
        measured = None
        text = f"{kind}: not measured"
        if named:
            slowest = min(named, key=lambda name: named[name])
            limit = _limit(speeds, slowest)
            text = f"{slowest}, bytes a second over its limit"
            if limit:
                text = f"{slowest}, bytes a second over {limit[0]}"
                measured = named[slowest] / limit[1]
        found.append(
            Bar(text, f">= {wanted}", measured, measured is not None and measured >= wanted)
        )
    return found
