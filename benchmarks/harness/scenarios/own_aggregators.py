# SPDX-License-Identifier: Apache-2.0
"""Measures an aggregator on each agent's node: the bytes on the wire, and the speed."""

from __future__ import annotations

from functools import partial

from netns import Network

from harness import hosts
from harness.contenders import GLOO, TALWEG
from harness.figures import format_bytes, parse_bytes
from harness.hosts import SOCKET_PS, Cluster
from harness.measure import Case, Result
from harness.report import Bar
from harness.scenario import Context, Make, Section, noted, run_beside

TITLE = "An aggregator on each node"
# How much frames and TCP may add to the gradient's own bytes.
_OVERHEAD = 1.02
_JUDGED_BYTES = parse_bytes("4MiB")

_CURVE = ("64KiB", "1MiB", "4MiB", "25MB", "64MiB")
_SIZES: dict[str, dict[int, tuple[str, ...]]] = {
    "smoke": {2: ("64KiB",)},
    "quick": {2: ("25MB",)},
    "default": {2: _CURVE, 4: ("4MiB", "25MB")},
    "full": {2: _CURVE, 3: _CURVE, 4: _CURVE},
}


def run(context: Context) -> Section:
    section = Section(TITLE)
    with noted(context, section):
        for count, sizes in _SIZES[context.mode].items():
            section.results += _run_setting(context, count, sizes)
    section.bars = bars(section.results)
    section.text = (
        "Each node has a rank, an agent and an aggregator, which sums its share of every tensor, and\n"
        "nothing else. A node must send at least (n-1)/n of the gradient to the others' aggregators, and\n"
        "1/n of the results to each of the others: 2(n-1)/n. Each node has a socket server, too.\n"
    )
    return section


def _run_setting(context: Context, count: int, sizes: tuple[str, ...]) -> list[Result]:
    programs = context.programs
    names = tuple(f"host{index}" for index in range(count))
    with Network(names, programs.congestion_control) as network:
        cluster = Cluster(network, names, names)
        makers: list[tuple[str, Make]] = [
            (TALWEG, partial(hosts.talweg, programs, cluster)),
            (SOCKET_PS, partial(hosts.socket_ps, programs, cluster)),
        ]
        # Importing torch is slow, and other scenarios run Gloo in smoke mode.
        if context.mode != "smoke":
            makers.append((GLOO, partial(hosts.gloo, programs, cluster)))
        cases = [Case(format_bytes(size), (size,)) for size in map(parse_bytes, sizes)]
        return run_beside(context, "own_aggregators", f"{count} hosts", makers, count, cases)


def bars(results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    for ours in results:
        if ours.contender != TALWEG or not ours.wire_bytes_of_hosts:
            continue
        if ours.total_bytes < _JUDGED_BYTES:
            continue
        least = 2 * (ours.rank_count - 1) / ours.rank_count * ours.total_bytes
        measured = max(ours.wire_bytes_of_hosts) / least
        text = f"{ours.setting}, {ours.case}: bytes that the busiest node sends over 2(n-1)/n"
        found.append(Bar(text, f"<= {_OVERHEAD}", measured, measured <= _OVERHEAD))
    return found
