# SPDX-License-Identifier: Apache-2.0
"""Measures one stream of each transport: libfabric's tcp, and Talweg's own TCP without TLS and with."""

from __future__ import annotations

from harness import google_benchmark
from harness.figures import format_bytes
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section

TITLE = "Transports"
# In the order of the benchmark's Implementation.
_NAMES = ("libfabric's tcp", "shared memory", "none", "keyed", "tls")
_FABRIC, _NONE, _TLS = 0, 2, 4
_OF_FABRIC, _OF_NONE = 1.0, 0.5
_SIZES = {
    "smoke": (64 << 10,),
    "quick": (64 << 10, 1 << 20, 16 << 20),
    "default": (64 << 10, 1 << 20, 16 << 20),
    "full": (64 << 10, 1 << 20, 4 << 20, 16 << 20),
}
_SECONDS = {"smoke": 0.001, "quick": 0.03, "default": 0.3, "full": 1.0}


def run(context: Context) -> Section:
    section = Section(TITLE)
    context.progress("one after the other, in random turns")
    sizes = "|".join(str(size) for size in _SIZES[context.mode])
    try:
        document = google_benchmark.run(
            context.programs.transport_benchmark,
            context.effort.repetitions,
            _SECONDS[context.mode],
            f"--benchmark_filter=/bytes:({sizes})/",
        )
    except google_benchmark.BenchmarkFailed as failure:
        context.notes.append(f"{TITLE}: {failure}")
        section.failed = True
        return section
    speeds = speeds_of(google_benchmark.medians(document))
    section.data = {
        f"{_NAMES[each]}, {format_bytes(size)}": speed for (each, size), speed in speeds.items()
    }
    section.bars = bars(speeds)
    section.text = (
        "GB/s of one connection over loopback, a thread at each end, eight writes in flight and a frame after\n"
        "each: the median of all repetitions, which come in random turns. `none`, `keyed` and `tls` are\n"
        "Talweg's own TCP with that data_security.\n\n"
    ) + table(speeds)
    return section


def speeds_of(medians: dict[str, float]) -> dict[tuple[int, int], float]:
    """Returns bytes a second by implementation and the bytes of a write."""
    speeds = {}
    for name, speed in medians.items():
        given = dict(part.split(":") for part in name.split("/") if ":" in part)
        size = int(given.pop("bytes"))
        (implementation,) = given.values()
        speeds[int(implementation), size] = speed
    return speeds


def bars(speeds: dict[tuple[int, int], float]) -> list[Bar]:
    found = []
    for size in sorted({size for _, size in speeds}):
        for each, over, least in ((_NONE, _FABRIC, _OF_FABRIC), (_TLS, _NONE, _OF_NONE)):
            if not speeds.get((each, size)) or not speeds.get((over, size)):
                continue
            ratio = speeds[each, size] / speeds[over, size]
            text = f"{format_bytes(size)} a write: {_NAMES[each]} over {_NAMES[over]}, GB/s"
            found.append(Bar(text, f">= {least}", ratio, ratio >= least))
    return found


def table(speeds: dict[tuple[int, int], float]) -> str:
    sizes = sorted({size for _, size in speeds})
    rows = []
    for each in sorted({each for each, _ in speeds}):
        cells = [speeds.get((each, size)) for size in sizes]
        row = ["" if speed is None else f"{speed * 1e-9:.2f}" for speed in cells]
        rows.append([_NAMES[each], *row])
    return markdown_table(["transport", *(format_bytes(size) for size in sizes)], rows)
