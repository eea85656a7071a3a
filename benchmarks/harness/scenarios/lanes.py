# SPDX-License-Identifier: Apache-2.0
"""Measures one aggregator whose lanes share its work, on a machine with spare cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from harness.contender import Command, Contender
from harness.contenders import Programs, talweg_rank
from harness.figures import parse_bytes
from harness.measure import Case
from harness.report import Bar
from harness.scenario import Context, Make, Section, find, run_beside

TITLE = "An aggregator's lanes"
_LANES = {"smoke": (1, 2), "quick": (1, 4), "default": (1, 2, 4), "full": (1, 2, 4, 8)}
_NODES = {"smoke": 2, "quick": 4, "default": 4, "full": 4}
_SIZES = {
    "smoke": ("64 KB",),
    "quick": ("256 MB",),
    "default": ("4 MB", "64 MB", "256 MB"),
    "full": ("4 MB", "64 MB", "256 MB"),
}
# With _CORES cores, _COMPARED lanes must be at least _TIMES as fast as one lane. On any machine
# they must be at least _TIMES_ANYWHERE as fast.
_COMPARED, _CORES, _TIMES, _TIMES_ANYWHERE = 4, 16, 2.5, 0.95


def _name(lanes: int) -> str:
    return f"{lanes} lane{'s' if lanes > 1 else ''}"


def _contender(programs: Programs, network: Sequence[str], nodes: int, lanes: int) -> Contender:
    """Returns a job with a node for each rank, and an aggregator, over TCP on the loopback."""
    tool = str(programs.tool)
    run = [
        tool,
        "run",
        f"--nodes={nodes}",
        "--ranks-per-node=1",
        "--aggregators=1",
        "--force-distributed",
        "--",
        *talweg_rank(tool),
    ]
    environment = {"TALWEG_LANES": str(lanes)}
    return Contender(_name(lanes), nodes, [Command((*network, *run), environment)])


def run(context: Context) -> Section:
    nodes, network = _NODES[context.mode], context.programs.in_own_network()
    makers: list[tuple[str, Make]] = [
        (_name(lanes), partial(_contender, context.programs, network, nodes, lanes))
        for lanes in _LANES[context.mode]
    ]
    section = Section(TITLE)
    cases = [Case(size, (parse_bytes(size),), "f32") for size in _SIZES[context.mode]]
    setting = f"{nodes} nodes of a rank"
    section.results = run_beside(context, "lanes", setting, makers, nodes, cases)
    section.failed = any(result.failure for result in section.results)
    cores = len(os.sched_getaffinity(0))
    for case in cases:
        one, more = (
            find(section.results, setting, case.label, _name(lanes)) for lanes in (1, _COMPARED)
        )
        if one is None or more is None:
            continue
        wanted = _TIMES if cores >= _CORES else _TIMES_ANYWHERE
        times = more.gigabytes_per_s_median / one.gigabytes_per_s_median
        text = f"{case.label}, {_name(_COMPARED)} over one, {cores} cores"
        section.bars.append(Bar(text, f">= {wanted:g}", times, times >= wanted))
    section.text = (
        "Nodes, aggregator and scheduler are on this machine, and talk TCP over its loopback. Each lane\n"
        "is a thread with an endpoint of its own (`lanes`, BYTEPS_SERVER_ENGINE_THREAD).\n"
    )
    return section
