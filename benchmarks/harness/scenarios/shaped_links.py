# SPDX-License-Identifier: Apache-2.0
"""Compares slow links, with an aggregator on every node and on k more hosts, with the optimum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from netns import Network

from harness import hosts
from harness.contenders import GLOO, TALWEG_IN_PLACE, TALWEG_INT8, TALWEG_OTHER
from harness.figures import format_bytes, optimum_s, servers_useful
from harness.goodput import goodput_bytes_per_s
from harness.hosts import Cluster
from harness.links import add_optimum, measure_each, rate_text, table_row
from harness.measure import Case, Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find, run_beside

TITLE = "Shaped links"
_OF_OPTIMUM = 1.05
_OF_GLOO = 1.4
_AS_INT8 = 0.3  # 65 of 256 bytes travel.
# Where links carry more, eight hosts on two cores are the bottleneck as soon as so little travels.
_AS_INT8_MEGABITS = 100


@dataclass(frozen=True)
class Links:
    """A cluster whose hosts have links of one rate."""

    megabits_per_s: int
    rank_hosts: int
    extra_hosts: int

    @property
    def setting(self) -> str:
        rate = rate_text(self.megabits_per_s)
        return f"{rate}, {self.rank_hosts} hosts, {self.extra_hosts} more"

    @property
    def with_gloo(self) -> bool:
        """Whether Gloo is measured, too. Further aggregators make no difference to it."""
        return self.extra_hosts in (0, self.rank_hosts)


def _all(megabits_per_s: int) -> tuple[Links, ...]:
    """Returns all shapes. The formula ends at n further hosts, because more would be idle."""
    shapes = [(2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (4, 4)]
    return tuple(Links(megabits_per_s, hosts, extra) for hosts, extra in shapes)


_LINKS: dict[str, tuple[tuple[Links, str], ...]] = {
    "smoke": ((Links(1000, 2, 1), "256KiB"),),
    "quick": ((Links(1000, 2, 1), "25MB"), (Links(1000, 4, 4), "25MB")),
    "default": (
        *((links, "100MB") for links in _all(1000)),
        *((Links(500, *shape), "100MB") for shape in ((2, 1), (4, 0), (4, 4))),
        (Links(100, 2, 1), "20MB"),
        (Links(100, 4, 4), "100MB"),
    ),
    "full": tuple((links, "100MB") for rate in (1000, 500, 100) for links in _all(rate)),
}


def run(context: Context) -> Section:
    section = Section(TITLE)
    rows = []
    run_links = partial(_run_links, context)
    for links, results in measure_each(context, TITLE, _LINKS[context.mode], run_links):
        section.results += results
        section.bars += bars(links, results)
        shown = (TALWEG_IN_PLACE, GLOO, TALWEG_INT8)
        rows.append(table_row(links.setting, results, shown, "over_optimum"))
    head = ["links", "gradient", "B, MB/s", "optimum", "Talweg", "over it", "Gloo", "over it"]
    head += ["as int8", "over it"]
    section.text = (
        "Every host's link has that rate each way (`tc ... tbf`). Aggregators run on the hosts with ranks\n"
        "and on as many more as the case says. The optimum is that of BytePS's OSDI'20 paper, 2n(n-1)M /\n"
        "((n^2+kn-2k)B), with B the goodput of one TCP stream over these links in this run. Talweg's\n"
        "gradients are written where its client keeps contributions (`talweg_contribution`), its fastest\n"
        "mode, and its results are copied to other buffers. Gloo's are reduced in place. As int8 a quarter\n"
        "of the bytes travels, and sums are rounded; the optimum is that of f32.\n\n"
    ) + markdown_table(head, rows)
    return section


def _run_links(context: Context, links: Links, size: int) -> list[Result]:
    programs = context.programs
    rank_hosts = tuple(f"host{index}" for index in range(links.rank_hosts))
    extra = tuple(f"aggregator{index}" for index in range(links.extra_hosts))
    with Network([*rank_hosts, *extra], programs.congestion_control) as network:
        for host in (*rank_hosts, *extra):
            network.shape(host, links.megabits_per_s * 1_000_000)
        context.progress(f"{links.setting}: one TCP stream")
        goodput = goodput_bytes_per_s(
            network, rank_hosts[0], rank_hosts[1], links.megabits_per_s, 10 * size
        )
        cluster = Cluster(network, rank_hosts, (*rank_hosts, *extra))
        ours = partial(hosts.talweg, programs, cluster, TALWEG_IN_PLACE)
        makers: list[tuple[str, Make]] = [(TALWEG_IN_PLACE, ours)]
        if programs.other_tool:
            other = partial(hosts.talweg, programs.other(), cluster, TALWEG_OTHER, 1)
            makers.append((TALWEG_OTHER, other))
        if links.with_gloo and context.mode != "smoke":
            makers.append((GLOO, partial(hosts.gloo, programs, cluster)))
            makers.append((TALWEG_INT8, partial(hosts.talweg, programs, cluster, TALWEG_INT8, 2)))
        cases = [Case(format_bytes(size), (size,))]
        results = run_beside(
            context, "shaped_links", links.setting, makers, links.rank_hosts, cases
        )
    best_s = optimum_s(links.rank_hosts, links.extra_hosts, size, goodput)
    for result in add_optimum(results, goodput, best_s):
        result.extra["over_optimum"] = result.median_s / best_s
    return results


def bars(links: Links, results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    case = results[0].case
    ours = find(results, links.setting, case, TALWEG_IN_PLACE)
    if ours is None:
        return [Bar(f"{links.setting}: time over the optimum", f"<= {_OF_OPTIMUM}", None, False)]
    over = ours.extra["over_optimum"]
    text = f"{links.setting}, {ours.case}: time over the optimum"
    found.append(Bar(text, f"<= {_OF_OPTIMUM}", over, over <= _OF_OPTIMUM))
    rounded = find(results, links.setting, case, TALWEG_INT8)
    if rounded is not None and links.megabits_per_s <= _AS_INT8_MEGABITS:
        share = rounded.median_s / ours.median_s
        text = f"{links.setting}, {ours.case}: time as int8 over that of f32"
        found.append(Bar(text, f"<= {_AS_INT8}", share, share <= _AS_INT8))
    gloo = find(results, links.setting, case, GLOO)
    full = servers_useful(links.rank_hosts, links.extra_hosts) == links.rank_hosts
    if gloo is not None and full and links.rank_hosts == 4:
        faster = gloo.median_s / ours.median_s
        text = f"{links.setting}, {ours.case}: Gloo's time over Talweg's"
        found.append(Bar(text, f">= {_OF_GLOO}", faster, faster >= _OF_GLOO))
    return found
