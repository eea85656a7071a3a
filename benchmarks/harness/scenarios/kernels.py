# SPDX-License-Identifier: Apache-2.0
"""Measures the bytes that sum kernels touch a second, in L2 and out of cache, beside memcpy."""

from __future__ import annotations

from harness import google_benchmark
from harness.figures import format_bytes
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section

TITLE = "Sum kernels"
_OF_LIMIT = 0.9
_ISAS = ("avx512", "avx2", "portable")  # The best first.
# The bytes that a kernel touches, in L2 and out of cache.
_IN_L2, _OUT_OF_CACHE = 192 << 10, 192 << 20
# The benchmarks to run, by mode. ISA stands for the best instruction set.
_FILTERS = {
    "smoke": f"^BM_(Copy|Touch/ISA/.*|Reduce/ISA/f32/sum)/({_IN_L2})$",
    "quick": f"^BM_(Copy|Touch/ISA/.*|Reduce/ISA/(f32|bf16)/sum)/({_IN_L2}|{_OUT_OF_CACHE})$",
    "default": f"^BM_(Copy|Touch/ISA/.*|Reduce/ISA/.*)/({_IN_L2}|{_OUT_OF_CACHE})$",
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
        document = google_benchmark.run(
            program,
            context.effort.repetitions,
            _SECONDS[context.mode],
            f"--benchmark_filter={_FILTERS[context.mode].replace('ISA', isa)}",
        )
    except google_benchmark.BenchmarkFailed as failure:
        context.notes.append(f"{TITLE}: {failure}")
        section.failed = True
        return section
    speeds = google_benchmark.medians(document)
    section.data = {"bytes_per_s": speeds, "instruction_set": isa}
    section.bars = bars(speeds, isa)
    section.text = (
        "Bytes touched (inputs read, output written) a second: the median of all repetitions, in random\n"
        "order. Every repetition touches as many bytes. Loads and stores alone read two inputs and write\n"
        "an output, or the first input, with one operation for each vector. docs/performance.md, Sum\n"
        "kernels, says what bounds each.\n\n"
    ) + table(speeds)
    return section


def table(speeds: dict[str, float]) -> str:
    sizes = sorted({int(name.rpartition("/")[2]) for name in speeds})
    limited = [size for size in sizes if any(_limit(speeds, name, size) for name in speeds)]
    rows = []
    for name in dict.fromkeys(name.rpartition("/")[0] for name in speeds):
        row = [_TITLES.get(name.partition("/")[0], "") + name.partition("/")[2]]
        for size in sizes:
            speed = speeds.get(f"{name}/{size}")
            row.append("" if speed is None else f"{speed * 1e-9:.1f}")
            row.append(_ratio(speed, speeds.get(f"Copy/{size}")))
            if size in limited:
                row.append(_ratio(speed, _limit(speeds, name, size)))
        rows.append(row)
    head = ["kernel"]
    for size in sizes:
        head += [f"{format_bytes(size)}, GB/s", "/ memcpy"]
        head += ["/ loads and stores"] * (size in limited)
    return markdown_table(head, rows)


_TITLES = {"Copy": "memcpy", "Touch": "loads and stores: "}


def _ratio(speed: float | None, limit: float | None) -> str:
    return "" if speed is None or limit is None else f"{speed / limit:.2f}"


def _limit(speeds: dict[str, float], kernel: str, size: int) -> float | None:
    """Returns a kernel's limit: in a cache, loads and stores alone; out of cache, a memcpy."""
    parts = kernel.split("/")
    if parts[0] != "Reduce" or size >= _OUT_OF_CACHE:
        return None
    where = "in_place" if "in_place" in kernel else "apart"
    return speeds.get(f"Touch/{parts[1]}/{where}/{size}")


def bars(speeds: dict[str, float], isa: str) -> list[Bar]:
    """Returns bars for the slowest kernels of the best instruction set, for each size."""
    found = []
    for size in sorted({int(name.rpartition("/")[2]) for name in speeds}):
        of_isa = [n for n in speeds if n.startswith(f"Reduce/{isa}/") and n.endswith(f"/{size}")]
        for group, names in _groups(of_isa).items():
            limits = {name: _limit(speeds, name, size) for name in names}
            found += _slowest(f"{format_bytes(size)}, {group}", speeds, limits, "loads and stores")
        copies = {name: speeds.get(f"Copy/{size}") for name in of_isa}
        found += _slowest(format_bytes(size), speeds, copies, "memcpy")
    return found


def _groups(names: list[str]) -> dict[str, list[str]]:
    """Groups kernels by their limit: 16-bit floats are converted, many inputs are many streams."""
    halves = [name for name in names if "f16/" in name]
    many = [name for name in names if "/sum_of_" in name]
    plain = [name for name in names if name not in halves + many]
    return {"32 and 64 bits, integers": plain, "floats of 16 bits": halves, "many inputs": many}


def _slowest(
    what: str, speeds: dict[str, float], limits: dict[str, float | None], limit: str
) -> list[Bar]:
    ratios = {name: speeds[name] / most for name, most in limits.items() if most}
    if not ratios:
        return []
    name = min(ratios, key=lambda name: ratios[name])
    text = f"{what}: the slowest kernel, {name}, over {limit}"
    return [Bar(text, f">= {_OF_LIMIT}", ratios[name], ratios[name] >= _OF_LIMIT)]
