# SPDX-License-Identifier: Apache-2.0
"""Slow links: an aggregator on every node and on k more hosts, against the best that can be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from netns import Network, NotPermitted

from harness import hosts
from harness.contender import ContenderFailed
from harness.contenders import GLOO, TALWEG_IN_PLACE
from harness.figures import format_bytes, optimum_s, parse_bytes, servers_useful
from harness.goodput import goodput_bytes_per_s
from harness.hosts import Cluster
from harness.measure import Case, Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, run_beside

TITLE = "Shaped links"
_OF_OPTIMUM = 1.05
_OF_GLOO = 1.4


@dataclass(frozen=True)
class Links:
    """A cluster whose hosts have links of one rate."""

    megabits_per_s: int
    rank_hosts: int
    extra_hosts: int

    @property
    def setting(self) -> str:
        rate = f"{self.megabits_per_s} Mb/s" if self.megabits_per_s < 1000 else "1 Gb/s"
        return f"{rate}, {self.rank_hosts} hosts, {self.extra_hosts} more"

    @property
    def with_gloo(self) -> bool:
        """More aggregators make no difference to it."""
        return self.extra_hosts in (0, self.rank_hosts)


def _all(megabits_per_s: int) -> tuple[Links, ...]:
    """All shapes; with more than n further hosts the formula ends, and they would be idle."""
    shapes = [(2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (4, 4)]
    return tuple(Links(megabits_per_s, hosts, extra) for hosts, extra in shapes)


# Size of the gradient by rate: what a round takes is to be seconds, not minutes.
_LINKS: dict[str, tuple[tuple[Links, str], ...]] = {
    "smoke": ((Links(1000, 2, 1), "256KiB"),),
    "quick": ((Links(1000, 2, 1), "25MB"), (Links(1000, 4, 4), "25MB")),
    "default": (
        *((links, "100MB") for links in _all(1000)),
        *((Links(500, *shape), "100MB") for shape in ((2, 1), (4, 0), (4, 4))),
        *((Links(100, *shape), "20MB") for shape in ((2, 1), (4, 4))),
    ),
    "full": tuple((links, "100MB") for rate in (1000, 500, 100) for links in _all(rate)),
}


def run(context: Context) -> Section:
    section = Section(TITLE)
    rows = []
    for links, size in _LINKS[context.mode]:
        try:
            results, goodput = _run_links(context, links, parse_bytes(size))
        except NotPermitted as refusal:
            context.notes.append(f"{TITLE} is left out: {refusal}")
            break
        except ContenderFailed as failure:
            context.notes.append(f"{links.setting}: {failure}")
            continue
        section.results += results
        section.bars += bars(links, results)
        rows.append(_row(links, results, goodput))
    head = ["links", "gradient", "B, MB/s", "optimum", "Talweg", "over it", "Gloo", "over it"]
    section.text = (
        "Every host's link has that rate each way (`tc ... tbf`). Aggregators run on the hosts with ranks and on\n"
        "as many more as said. The optimum is that of BytePS's OSDI'20 paper, 2n(n-1)M / ((n^2+kn-2k)B), with B\n"
        "the goodput of one TCP stream over these links in this run. Talweg's gradients are written where its\n"
        "client keeps contributions (`talweg_contribution`), its fastest mode, as Gloo's are reduced in place.\n\n"
    ) + markdown_table(head, rows)
    return section


def _run_links(context: Context, links: Links, size: int) -> tuple[list[Result], float]:
    programs = context.programs
    rank_hosts = tuple(f"host{index}" for index in range(links.rank_hosts))
    extra = tuple(f"aggregator{index}" for index in range(links.extra_hosts))
    with Network([*rank_hosts, *extra], programs.congestion_control) as network:
        for host in (*rank_hosts, *extra):
            network.shape(host, links.megabits_per_s * 1_000_000)
        context.progress(f"{links.setting}: one TCP stream")
        # What the link carries in a second and a half.
        count = min(10 * size, links.megabits_per_s * 187_500)
        goodput = goodput_bytes_per_s(network, rank_hosts[0], rank_hosts[1], count)
        cluster = Cluster(network, rank_hosts, (*rank_hosts, *extra))
        ours = partial(hosts.talweg, programs, cluster, TALWEG_IN_PLACE)
        makers: list[tuple[str, Make]] = [(TALWEG_IN_PLACE, ours)]
        if links.with_gloo and context.mode != "smoke":
            makers.append((GLOO, partial(hosts.gloo, programs, cluster)))
        cases = [Case(format_bytes(size), (size,))]
        results = run_beside(
            context, "shaped_links", links.setting, makers, links.rank_hosts, cases
        )
    best_s = optimum_s(links.rank_hosts, links.extra_hosts, size, goodput)
    for result in results:
        result.extra["goodput_bytes_per_s"] = goodput
        result.extra["optimum_s"] = best_s
        if not result.failure:
            result.extra["over_optimum"] = result.median_s / best_s
    return results, goodput


def _row(links: Links, results: list[Result], goodput: float) -> list[str]:
    row = [links.setting, results[0].case, f"{goodput * 1e-6:.4g}"]
    row.append(f"{results[0].extra['optimum_s']:.3f} s")
    for contender in (TALWEG_IN_PLACE, GLOO):
        result = next((r for r in results if r.contender == contender and not r.failure), None)
        row += (
            [f"{result.median_s:.3f} s", f"{result.extra['over_optimum']:.3f}"]
            if result
            else ["", ""]
        )
    return row


def bars(links: Links, results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    ours = next((r for r in results if r.contender == TALWEG_IN_PLACE and not r.failure), None)
    if ours is None:
        return [Bar(f"{links.setting}: time over the optimum", f"<= {_OF_OPTIMUM}", None, False)]
    over = ours.extra["over_optimum"]
    text = f"{links.setting}, {ours.case}: time over the optimum"
    found.append(Bar(text, f"<= {_OF_OPTIMUM}", over, over <= _OF_OPTIMUM))
    gloo = next((r for r in results if r.contender == GLOO and not r.failure), None)
    full = servers_useful(links.rank_hosts, links.extra_hosts) == links.rank_hosts
    if gloo is not None and full and links.rank_hosts == 4:
        faster = gloo.median_s / ours.median_s
        text = f"{links.setting}, {ours.case}: Gloo's time over Talweg's"
        found.append(Bar(text, f">= {_OF_GLOO}", faster, faster >= _OF_GLOO))
    return found
