# SPDX-License-Identifier: Apache-2.0
"""The sum kernels beside memcpy: bytes touched a second, in L2 and out of cache."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from harness.figures import format_bytes
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section

TITLE = "Sum kernels"
_OF_COPY = 0.9
_ISAS = ("avx512", "avx2", "portable")  # The best first.
_TIMEOUT_S = 1800.0

# Which benchmarks, by mode; %s: the best instruction set.
_FILTERS = {
    "smoke": "^BM_(Copy|Reduce/%s/f32/sum)/(65536)$",
    "quick": "^BM_(Copy|Reduce/%s/(f32|bf16)/sum)/(65536|67108864)$",
    "default": "^BM_(Copy|Reduce/%s/[a-z0-9]+/[a-z0-9_]+)/(65536|67108864)$",
    "full": "^BM_",
}
_SECONDS = {"smoke": 0.001, "quick": 0.02, "default": 0.02, "full": 0.1}


def _best_isa(binary: str) -> str:
    line = [binary, "--benchmark_list_tests"]
    names = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    return next(isa for isa in _ISAS if f"BM_Reduce/{isa}/" in names)


def run(context: Context) -> Section:
    section = Section(TITLE)
    binary = str(context.programs.reduce_benchmark)
    context.progress("one after the other, in random turns")
    try:
        isa = _best_isa(binary)
        wanted = _FILTERS[context.mode]
        line = [
            binary,
            f"--benchmark_filter={wanted % isa if '%s' in wanted else wanted}",
            f"--benchmark_min_time={_SECONDS[context.mode]}",
            f"--benchmark_repetitions={context.effort.repetitions}",
            "--benchmark_enable_random_interleaving=true",
            "--benchmark_report_aggregates_only=false",
            "--benchmark_format=json",
        ]
        result = subprocess.run(
            line, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
    except (OSError, StopIteration, subprocess.SubprocessError) as error:
        context.notes.append(f"{TITLE}: {error}")
        section.failed = True
        return section
    speeds = medians(json.loads(result.stdout))
    section.data = {"bytes_per_s": speeds, "instruction_set": isa}
    section.bars = bars(speeds, isa)
    section.text = (
        "Bytes touched (inputs read, output written) a second, the median of all repetitions, which come in random\n"
        "turns. memcpy touches two bytes for each that it copies. 64 KiB of output and its inputs lie in L2.\n\n"
    ) + table(speeds)
    return section


def medians(document: dict[str, Any]) -> dict[str, float]:
    """Bytes a second by name ("Copy/65536"), from Google Benchmark's JSON."""
    return {
        each["run_name"].removeprefix("BM_"): each["bytes_per_second"]
        for each in document["benchmarks"]
        if each["run_type"] == "aggregate" and each["aggregate_name"] == "median"
    } or {
        # One repetition has no aggregates.
        each["run_name"].removeprefix("BM_"): each["bytes_per_second"]
        for each in document["benchmarks"]
    }


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
