# SPDX-License-Identifier: Apache-2.0
"""The sum kernels beside memcpy: bytes touched a second, in L2 and out of cache."""

from __future__ import annotations

from harness import google_benchmark
from harness.figures import format_bytes
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section

TITLE = "Sum kernels"
_OF_COPY = 0.9
_ISAS = ("avx512", "avx2", "portable")  # The best first.
# Which benchmarks, by mode; %s: the best instruction set.
_FILTERS = {
    "smoke": "^BM_(Copy|Reduce/%s/f32/sum)/(65536)$",
    "quick": "^BM_(Copy|Reduce/%s/(f32|bf16)/sum)/(65536|67108864)$",
    "default": "^BM_(Copy|Reduce/%s/[a-z0-9]+/[a-z0-9_]+)/(65536|67108864)$",
    "full": "^BM_",
}
_SECONDS = {"smoke": 0.001, "quick": 0.02, "default": 0.02, "full": 0.1}


def run(context: Context) -> Section:
    section = Section(TITLE)
    program = context.programs.reduce_benchmark
    context.progress("one after the other, in random turns")
    try:
        named = google_benchmark.names(program)
        isa = next(isa for isa in _ISAS if any(f"/{isa}/" in name for name in named))
        wanted = _FILTERS[context.mode]
        document = google_benchmark.run(
            program,
            context.effort.repetitions,
            _SECONDS[context.mode],
            f"--benchmark_filter={wanted % isa if '%s' in wanted else wanted}",
        )
    except google_benchmark.BenchmarkFailed as failure:
        context.notes.append(f"{TITLE}: {failure}")
        section.failed = True
        return section
    speeds = google_benchmark.medians(document)
    section.data = {"bytes_per_s": speeds, "instruction_set": isa}
    section.bars = bars(speeds, isa)
    section.text = (
        "Bytes touched (inputs read, output written) a second, the median of all repetitions, which come in random\n"
        "turns. memcpy touches two bytes for each that it copies. 64 KiB of output and its inputs lie in L2, but for\n"
        "those of sum_of_32, and what sum_streaming writes. docs/performance.md, Sum kernels: what bounds each.\n\n"
    ) + table(speeds)
    return section


def table(speeds: dict[str, float]) -> str:
    sizes = sorted({int(name.rpartition("/")[2]) for name in speeds})
    rows = []
    for name in dict.fromkeys(name.rpartition("/")[0] for name in speeds):
        row = ["memcpy" if name == "Copy" else name.removeprefix("Reduce/")]
        for size in sizes:
            speed, copy = speeds.get(f"{name}/{size}"), speeds.get(f"Copy/{size}")
            row.append("" if speed is None else f"{speed * 1e-9:.1f}")
            row.append("" if speed is None or copy is None else f"{speed / copy:.2f}")
        rows.append(row)
    head = ["kernel"]
    for size in sizes:
        head += [f"{format_bytes(size)}, GB/s", "/ memcpy"]
    return markdown_table(head, rows)


def bars(speeds: dict[str, float], isa: str) -> list[Bar]:
    """The slowest kernel of the best instruction set, for each size."""
    found = []
    for size in sorted({int(name.rpartition("/")[2]) for name in speeds}):
        copy = speeds.get(f"Copy/{size}")
        kernels = {
            name: speed
            for name, speed in speeds.items()
            if name.startswith(f"Reduce/{isa}/") and name.endswith(f"/{size}")
        }
        if not copy or not kernels:
            continue
        slowest = min(kernels, key=lambda name: kernels[name])
        measured = kernels[slowest] / copy
        text = f"{format_bytes(size)}: the slowest kernel, {slowest}, over memcpy"
        found.append(Bar(text, f">= {_OF_COPY}", measured, measured >= _OF_COPY))
    return found
