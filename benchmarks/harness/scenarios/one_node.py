# SPDX-License-Identifier: Apache-2.0
"""Measures ranks of one node, without a network, beside Gloo and OpenMPI's shared memory."""

from __future__ import annotations

from functools import partial

from harness.contenders import (
    COPIES,
    GLOO,
    LIMIT,
    OPENMPI,
    TALWEG,
    TALWEG_HOOK,
    TALWEG_IN_PLACE,
    TALWEG_NUMPY,
    TALWEG_OTHER,
    TALWEG_TORCH,
    copying_ranks,
    gloo,
    memory_limit,
    openmpi,
    talweg_on_one_node,
    talweg_with_hook,
    talweg_with_numpy,
    talweg_with_torch,
)
from harness.figures import format_bytes, parse_bytes
from harness.measure import Case, Result
from harness.report import Bar
from harness.scenario import Context, Make, Section, fastest, find, ratio_bar, run_beside

TITLE = "Ranks of one node"
NAMED = "25 MB"
SMALL = "4 KiB"
# Cases of at least this size get their own processes, so the memory of these belongs to the case.
_LARGE_BYTES = 25_000_000

_CURVE = ("4KiB", "64KiB", "1MiB", "4MiB", "25MB", "100MB", "256MB")
_FULL = ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "2MiB", "4MiB", "8MiB", "16MiB", "25MB")
_SIZES = {
    ("smoke", 2, "f32"): ("4KiB", "64KiB"),
    ("quick", 2, "f32"): ("4KiB", "25MB"),
    ("quick", 4, "f32"): ("4KiB", "25MB"),
    ("quick", 2, "bf16"): ("25MB",),
    ("default", 2, "f32"): _CURVE,
    ("default", 4, "f32"): _CURVE,
    ("default", 2, "bf16"): ("4KiB", "1MiB", "25MB", "256MB"),
    ("default", 4, "bf16"): ("4KiB", "25MB"),
}
for _ranks in (2, 4):
    for _dtype in ("f32", "bf16"):
        _SIZES["full", _ranks, _dtype] = (*_FULL, "64MB", "100MB", "256MB")


def _setting(ranks: int, dtype: str) -> str:
    return f"{ranks} ranks, {dtype}"


def run(context: Context) -> Section:
    programs = context.programs
    network = programs.in_own_network()
    if not network:
        context.notes.append(
            "No network namespaces here: Gloo uses the host's loopback and congestion control."
        )
    section = Section(TITLE)
    for (mode, ranks, dtype), sizes in _SIZES.items():
        if mode != context.mode:
            continue
        makers: list[tuple[str, Make]] = [
            (TALWEG, partial(talweg_on_one_node, programs, ranks, network)),
            (
                TALWEG_IN_PLACE,
                partial(talweg_on_one_node, programs, ranks, network, TALWEG_IN_PLACE),
            ),
            (OPENMPI, partial(openmpi, programs, ranks, network)),
            (GLOO, partial(gloo, programs, ranks, network)),
            (LIMIT, partial(memory_limit, programs, ranks)),
        ]
        if dtype == "f32":
            maker = partial(talweg_with_numpy, programs, ranks, network)
            makers.append((TALWEG_NUMPY, maker))
            makers.append((COPIES, partial(copying_ranks, programs, ranks)))
            if context.mode in ("default", "full"):  # Importing torch is slow.
                maker = partial(talweg_with_torch, programs, ranks, network)
                makers.append((TALWEG_TORCH, maker))
                maker = partial(talweg_with_hook, programs, ranks, network)
                makers.append((TALWEG_HOOK, maker))
        if programs.other_tool:
            other = partial(talweg_on_one_node, programs.other(), ranks, network, TALWEG_OTHER)
            makers.append((TALWEG_OTHER, other))
        cases = [Case(format_bytes(size), (size,), dtype) for size in map(parse_bytes, sizes)]
        lives = [[case for case in cases if case.total_bytes < _LARGE_BYTES]]
        lives += [[case] for case in cases if case.total_bytes >= _LARGE_BYTES]
        for life in filter(None, lives):
            section.results += run_beside(
                context, "one_node", _setting(ranks, dtype), makers, ranks, life
            )
    section.bars = bars(section.results)
    section.text = (
        "The limit is the least that memory allows: every rank's gradient is read once and every rank's\n"
        "result is written once, in place, by all ranks at the same time, with no sum and no waiting. With\n"
        "own buffers, a rank writes gradients into its Talweg client's memory. They are summed there, and\n"
        "nothing is copied. Programs with NumPy get that from declare_in_place(), and torch's gradients\n"
        "from a DistributedOptimizer, which here averages gradients that are changed in place, or from\n"
        "ddp_hook, which averages DistributedDataParallel's buckets in a backward pass that computes\n"
        'nothing. Gradients that lie elsewhere are copied; "the same copies" are made by processes that do\n'
        "nothing else (`benchmarks/baselines/copying_ranks.cc`). The bars at 25 MB take the faster of the\n"
        "two rows, as they take the peers in their fastest documented mode, and say which row that is.\n"
    )
    return section


def _large_bars(results: list[Result], setting: str) -> list[Bar]:
    """Compares ways of one size with each other, from 4 to 100 MB."""
    found: list[Bar] = []
    for ours in results:
        if not 4_000_000 <= parse_bytes(ours.case.replace(" ", "")) <= 100_000_000:
            continue
        for contender, other, words, wanted in (
            (TALWEG_NUMPY, TALWEG_IN_PLACE, "NumPy in place over own buffers", 0.7),
            (TALWEG_TORCH, TALWEG_IN_PLACE, "torch's gradients over own buffers", 0.7),
            (TALWEG_HOOK, TALWEG_IN_PLACE, "DDP's buckets over own buffers", 0.7),
            (TALWEG, COPIES, "copied gradients over the same copies", 0.8),
        ):
            if (ours.setting, ours.contender) == (setting, contender):
                theirs = find(results, setting, ours.case, other)
                text = f"{setting}, {ours.case}: {words}, in GB/s"
                found.append(
                    ratio_bar(text, ours, theirs, wanted, lambda r: r.gigabytes_per_s_median)
                )
    return found


def bars(results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    for ranks in (2, 4):
        for dtype in ("f32", "bf16"):
            setting = _setting(ranks, dtype)
            if not any(result.setting == setting for result in results):
                continue
            ours = fastest(results, setting, NAMED, (TALWEG, TALWEG_IN_PLACE))
            mode = " (own buffers)" if ours and ours.contender == TALWEG_IN_PLACE else ""
            for peer, wanted in ((GLOO, 3.0), (OPENMPI, 1.5)):
                theirs = find(results, setting, NAMED, peer)
                text = f"{setting}, {NAMED}{mode}: GB/s as a multiple of {peer}'s"
                found.append(
                    ratio_bar(text, ours, theirs, wanted, lambda r: r.gigabytes_per_s_median)
                )
            theirs = find(results, setting, NAMED, OPENMPI)
            text = f"{setting}, {NAMED}{mode}: CPU a GB over {OPENMPI}'s"
            found.append(ratio_bar(text, ours, theirs, 1.0, lambda r: r.cpu_s_per_gigabyte, True))
            if dtype == "f32":
                small = find(results, setting, SMALL, TALWEG)
                theirs = find(results, setting, SMALL, GLOO)
                text = f"{setting}, {SMALL}: latency over {GLOO}'s"
                found.append(ratio_bar(text, small, theirs, 1 / 8, lambda r: r.median_s, True))
                found += _large_bars(results, setting)
    return found
