# SPDX-License-Identifier: Apache-2.0
"""Measures sums of the sparse gradient of an embedding, beside dense ones and Gloo's sparse ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from netns import Network

from harness import contenders, hosts
from harness.contender import Command, Contender
from harness.contenders import talweg_python
from harness.figures import format_seconds
from harness.hosts import Cluster
from harness.measure import Case, Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find, noted, ratio_bar, run_beside

TITLE = "Sparse sums"
_SPARSE, _DENSE, _GLOO = "push_pull_sparse", "push_pull of the whole tensor", "Gloo, sparse"
_MANNERS = {_SPARSE: "sparse", _DENSE: "dense", _GLOO: "gloo"}
_OF_GLOO = 1.0
_MEGABITS = 1000
_NODE = "1 node, 4 ranks"

# The distribution of the rows, and how many each rank draws.
_CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("zipf", 300),),
    "quick": (("zipf", 20_000),),
    "default": (("zipf", 2_000), ("zipf", 50_000), ("uniform", 5_000), ("uniform", 50_000)),
}
_CASES["full"] = _CASES["default"]
# How many hosts there are, each with a rank.
_HOSTS = {"smoke": (), "quick": (4,), "default": (2, 4, 8), "full": (2, 4, 8)}


def _cases(context: Context) -> list[Case]:
    # For the workers the dtype is the distribution, and the bytes are the number of rows.
    return [
        Case(f"{kind}, {rows} rows", (rows,), kind, frozenset())
        for kind, rows in _CASES[context.mode]
    ]


def _on_a_node(context: Context) -> list[Result]:
    programs = context.programs
    peer = str(programs.peers / "sparse_sums.py")

    def ours(name: str) -> Contender:
        rank = talweg_python(programs, peer, _MANNERS[name])
        run = (str(programs.tool), "run", "--nodes=1", "--ranks-per-node=4", "--", *rank.line)
        return Contender(name, 4, [Command(run, rank.environment)])

    gloo = partial(contenders.python_ranks, _GLOO, 4, (), [peer, "gloo"], {})
    makers: list[tuple[str, Make]] = [
        (_SPARSE, partial(ours, _SPARSE)),
        (_DENSE, partial(ours, _DENSE)),
        (_GLOO, gloo),
    ]
    return run_beside(context, "sparse", _NODE, makers, 4, _cases(context))


def _setting(count: int) -> str:
    return f"{count} hosts, 1 Gb/s"


def _between_hosts(context: Context, count: int) -> list[Result]:
    programs = context.programs
    peer = str(programs.peers / "sparse_sums.py")
    names = tuple(f"host{index}" for index in range(count))
    with Network(names, programs.congestion_control) as network:
        for host in names:
            network.shape(host, _MEGABITS * 1_000_000)
        cluster = Cluster(network, names, names)

        def ours(name: str, index: int) -> Contender:
            rank = talweg_python(programs, peer, _MANNERS[name])
            return hosts.talweg(programs, cluster, name, index, rank)

        gloo = partial(hosts.python_ranks, cluster, _GLOO, [peer, "gloo"])
        makers: list[tuple[str, Make]] = [
            (_SPARSE, partial(ours, _SPARSE, 0)),
            (_DENSE, partial(ours, _DENSE, 1)),
            (_GLOO, gloo),
        ]
        return run_beside(context, "sparse", _setting(count), makers, count, _cases(context))


def run(context: Context) -> Section:
    section = Section(TITLE)
    settings = [_NODE]
    results = _on_a_node(context)
    for count in _HOSTS[context.mode]:
        with noted(context, section, f" on {count} hosts"):
            results += _between_hosts(context, count)
            settings.append(_setting(count))
    section.failed = section.failed or any(result.failure for result in results)
    section.text = _table(results, settings) + (
        "\nAn embedding of 200,000 rows of 64 f32. Each rank draws so many rows, and gives each that it\n"
        "has drawn once: as words of a text come (zipf, exponent 1.1), or all alike (uniform). The\n"
        "dense sum takes the whole tensor, in place. Gloo gathers all rows, and adds them up.\n"
    )
    for result in results:
        section.data.setdefault(result.setting, {}).setdefault(result.case, {})[
            result.contender
        ] = {"median_s": result.median_s, "wire_bytes": result.wire_bytes_per_round}
    section.bars = [bar for setting in settings for bar in _bars(results, setting)]
    return section


def _table(results: Sequence[Result], settings: Sequence[str]) -> str:
    rows = []
    for setting in settings:
        for case in dict.fromkeys(result.case for result in results):
            found = [find(results, setting, case, name) for name in _MANNERS]
            times = [format_seconds(each.median_s) if each else "failed" for each in found]
            rows.append([setting, case, *times])
    return markdown_table(["ranks", "rows that each draws", *_MANNERS], rows)


def _bars(results: Sequence[Result], setting: str) -> list[Bar]:
    return [
        ratio_bar(
            f"{setting}, {case}: {_SPARSE} over {_GLOO}",
            find(results, setting, case, _SPARSE),
            find(results, setting, case, _GLOO),
            _OF_GLOO,
            lambda result: result.median_s,
            at_most=True,
        )
        for case in dict.fromkeys(result.case for result in results)
    ]
