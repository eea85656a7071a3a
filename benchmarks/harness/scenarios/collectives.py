# SPDX-License-Identifier: Apache-2.0
"""Measures all_gather, reduce_scatter and all_to_all through torch.distributed, beside peers."""

from __future__ import annotations

from functools import partial

from netns import Network

from harness import hosts
from harness.contender import Command, Contender
from harness.contenders import (
    GLOO,
    OPENMPI,
    TALWEG,
    Programs,
    openmpi,
    python_ranks,
    talweg_python,
)
from harness.figures import format_bytes, parse_bytes
from harness.goodput import goodput_bytes_per_s
from harness.hosts import Cluster
from harness.links import add_optimum, measure_each, table_row
from harness.measure import Case, Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find, ratio_bar, run_beside

TITLE = "Collectives"
NAMED, SMALL = "25 MB", "4 KiB"
_OF_GLOO, _OF_OPENMPI, _LATENCY_OF_GLOO, _OVER_LINK = 3.0, 1.2, 1 / 8, 1.1
_MEGABITS_PER_S = 1000
_PEER = "collectives.py"

# The calls, with the names that the workers take.
CALLS = {"all_gather": "ag", "reduce_scatter": "rs", "all_to_all": "a2a", "all_reduce": "ar"}
# Calls in which a host must receive or send all bytes of a rank except for its own part.
_BETWEEN_HOSTS = ("all_gather", "reduce_scatter", "all_to_all")
# How many all_reduces a rank makes one after another without waiting, as DDP does.
_AT_ONCE = 4

_RANKS: dict[str, tuple[int, ...]] = {"smoke": (2,), "quick": (2, 4), "default": (2, 4)}
_SIZES: dict[str, tuple[str, ...]] = {"smoke": ("4KiB", "64KiB"), "default": ("4KiB", "25MB")}
_FULL_SIZES = ("4KiB", "64KiB", "1MiB", "4MiB", "25MB", "100MB")
_HOSTS: dict[str, tuple[int, ...]] = {"smoke": (2,), "quick": (2,), "default": (2, 4)}


def case_of(call: str, size: int) -> Case:
    return Case(f"{call}, {format_bytes(size)}", (size,), CALLS[call])


def at_once(size: int) -> Case:
    return Case(f"{_AT_ONCE} all_reduces at once, {format_bytes(size)}", (size,) * _AT_ONCE, "ars")


def least_s(case: Case, hosts_: int, goodput_bytes_per_s: float) -> float:
    """Returns the least time that a link needs for the bytes that a host must receive or send.

    An all_reduce has the bytes of a reduce_scatter and an all_gather.
    """
    each = (2 if case.dtype == "ars" else 1) * (hosts_ - 1) / hosts_
    return each * case.total_bytes / goodput_bytes_per_s


def talweg_rank(programs: Programs) -> Command:
    rank = talweg_python(programs, str(programs.peers / _PEER), "talweg")
    return Command(rank.line, {**rank.environment, "OMP_NUM_THREADS": "1"})


def talweg(programs: Programs, ranks: int, network: tuple[str, ...]) -> Contender:
    run = (str(programs.tool), "run", "--nodes=1", f"--ranks-per-node={ranks}", "--")
    rank = talweg_rank(programs)
    commands = [Command((*network, *run, *rank.line), rank.environment)]
    return Contender(TALWEG, ranks, commands, counts_loopback=bool(network))


def gloo(programs: Programs, ranks: int, network: tuple[str, ...]) -> Contender:
    return python_ranks(GLOO, ranks, network, [str(programs.peers / _PEER), "gloo"], {})


def one_node(context: Context) -> list[Result]:
    programs, results = context.programs, []
    network = programs.in_own_network()
    sizes = _FULL_SIZES if context.mode == "full" else _SIZES.get(context.mode, _SIZES["default"])
    cases = [case_of(call, parse_bytes(size)) for call in CALLS for size in sizes]
    for ranks in _RANKS.get(context.mode, _RANKS["default"]):
        makers: list[tuple[str, Make]] = [
            (TALWEG, partial(talweg, programs, ranks, network)),
            (GLOO, partial(gloo, programs, ranks, network)),
            (OPENMPI, partial(openmpi, programs, ranks, network, "mpi_collectives")),
        ]
        results += run_beside(context, "collectives", _on_node(ranks), makers, ranks, cases)
    return results


def _on_node(ranks: int) -> str:
    return f"{ranks} ranks of a node"


class _Links:
    def __init__(self, count: int) -> None:
        self.count = count
        self.setting = f"{count} hosts, 1 Gb/s"


def between_hosts(context: Context, links: _Links, size: int) -> list[Result]:
    """Measures one rank and one aggregator on each host."""
    programs = context.programs
    names = tuple(f"host{index}" for index in range(links.count))
    with Network(list(names), programs.congestion_control) as network:
        for host in names:
            network.shape(host, _MEGABITS_PER_S * 1_000_000)
        context.progress(f"{links.setting}: one TCP stream")
        goodput = goodput_bytes_per_s(network, names[0], names[1], _MEGABITS_PER_S, 10 * size)
        cluster = Cluster(network, names, names)
        makers: list[tuple[str, Make]] = [
            (TALWEG, partial(hosts.talweg, programs, cluster, TALWEG, 0, talweg_rank(programs))),
            (
                GLOO,
                partial(hosts.python_ranks, cluster, GLOO, [str(programs.peers / _PEER), "gloo"]),
            ),
        ]
        cases = [*(case_of(call, size) for call in _BETWEEN_HOSTS), at_once(size)]
        results = run_beside(context, "collectives", links.setting, makers, links.count, cases)
    for case in cases:
        best_s = least_s(case, links.count, goodput)
        of_case = [result for result in results if result.case == case.label]
        for result in add_optimum(of_case, goodput, best_s):
            result.extra["over_link"] = result.median_s / best_s
    return results


def run(context: Context) -> Section:
    section = Section(TITLE)
    section.results = one_node(context)
    section.bars = node_bars(section.results)
    rows = []
    size = "256KiB" if context.mode == "smoke" else "25MB"
    cases = [(_Links(count), size) for count in _HOSTS.get(context.mode, _HOSTS["default"])]
    for links, results in measure_each(context, TITLE, cases, partial(between_hosts, context)):
        section.results += results
        section.bars += link_bars(links.setting, results)
        for case in dict.fromkeys(result.case for result in results):
            of_case = [result for result in results if result.case == case]
            rows.append(table_row(links.setting, of_case, (TALWEG, GLOO), "over_link"))
    head = ["links", "call", "B, MB/s", "least", "Talweg", "over it", "Gloo", "over it"]
    section.text = (
        "Talweg and Gloo are backends of torch.distributed: the same program makes the same calls.\n"
        "OpenMPI's ranks are written in C. A size is that of a rank's result for an all_gather, and\n"
        "that of a rank's input for the others. Each of several hosts has a rank and an aggregator. A\n"
        "host must send or receive (n-1)/n of the size, twice as much for an all_reduce. The least\n"
        "time is that of these bytes at B, the goodput of one TCP stream over these links in this\n"
        "run.\n\n"
    ) + (markdown_table(head, rows) if rows else "")
    return section


def node_bars(results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    for setting in dict.fromkeys(result.setting for result in results):
        for call in CALLS:
            case = f"{call}, {NAMED}"
            if any(result.case == case for result in results) and call in _BETWEEN_HOSTS:
                ours = find(results, setting, case, TALWEG)
                for peer, wanted in ((GLOO, _OF_GLOO), (OPENMPI, _OF_OPENMPI)):
                    theirs = find(results, setting, case, peer)
                    text = f"{setting}, {case}: GB/s as a multiple of {peer}'s"
                    found.append(
                        ratio_bar(text, ours, theirs, wanted, lambda r: r.gigabytes_per_s_median)
                    )
            case = f"{call}, {SMALL}"
            ours, theirs = (find(results, setting, case, name) for name in (TALWEG, GLOO))
            text = f"{setting}, {case}: latency over {GLOO}'s"
            found.append(
                ratio_bar(text, ours, theirs, _LATENCY_OF_GLOO, lambda r: r.median_s, True)
            )
    return found


def link_bars(setting: str, results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    for case in dict.fromkeys(result.case for result in results):
        ours = find(results, setting, case, TALWEG)
        over = ours.extra["over_link"] if ours else None
        text = f"{setting}, {case}: time over what its link needs"
        holds = over is not None and over <= _OVER_LINK
        found.append(Bar(text, f"<= {_OVER_LINK}", over, holds))
    return found
