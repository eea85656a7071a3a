# SPDX-License-Identifier: Apache-2.0
"""Measures links with delay. The aggregator's host is far from the hosts with ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from netns import Network

from harness import hosts
from harness.contenders import TALWEG_IN_PLACE
from harness.figures import format_bytes
from harness.goodput import goodput_bytes_per_s
from harness.hosts import SOCKET_PS, Cluster
from harness.links import add_optimum, measure_each, rate_text, table_row
from harness.measure import Case, Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find, run_beside

TITLE = "Links with delay"
_OF_OPTIMUM = 0.85
_RANK_HOSTS = ("host0", "host1")
_FAR_HOST = "aggregator"


@dataclass(frozen=True)
class Link:
    """The links from the hosts with ranks to the aggregator's host."""

    megabits_per_s: int
    round_trip_ms: int

    @property
    def setting(self) -> str:
        return f"{rate_text(self.megabits_per_s)}, {self.round_trip_ms} ms there and back"

    def optimum_s(self, size: int, goodput: float) -> float:
        """Returns the time of all bytes on the link, plus the link's delay.

        Results follow right after contributions.
        """
        return size / goodput + self.round_trip_ms * 1e-3


_LINKS: dict[str, tuple[tuple[Link, str], ...]] = {
    "smoke": ((Link(1000, 4), "256KiB"),),
    "quick": ((Link(500, 40), "10MB"),),
    "default": (
        (Link(100, 80), "10MB"),
        (Link(500, 40), "25MB"),
        (Link(1000, 10), "50MB"),
        (Link(1000, 40), "50MB"),
    ),
    "full": tuple(
        (Link(rate, ms), "100MB") for rate in (100, 500, 1000) for ms in (5, 10, 20, 40, 80)
    ),
}


def run(context: Context) -> Section:
    section = Section(TITLE)
    rows = []
    run_link = partial(_run_link, context)
    for link, results in measure_each(context, TITLE, _LINKS[context.mode], run_link):
        section.results += results
        section.bars.append(bar(link, results))
        contenders = (TALWEG_IN_PLACE, SOCKET_PS)
        rows.append(table_row(link.setting, results, contenders, "of_optimum"))
    head = ["link", "gradient", "B, MB/s", "optimum", "Talweg", "of it", "socket server", "of it"]
    section.text = (
        "Two hosts have a rank each. A third one only aggregates, at the end of a cable that holds frames\n"
        "back (`tests/netns/delay_line.py`). Each rank's host has a link of that rate each way, with a\n"
        "queue for one round trip's bytes. The aggregator's link is not shaped. The optimum is M/B plus\n"
        "the delay there and back; B is the goodput of one TCP stream over the same link without delay.\n"
        "All options have their defaults, also the kernel's (`tcp_wmem`, `tcp_rmem`).\n\n"
    ) + markdown_table(head, rows)
    return section


def _run_link(context: Context, link: Link, size: int) -> list[Result]:
    programs = context.programs
    with Network([*_RANK_HOSTS, _FAR_HOST], programs.congestion_control) as network:
        for host in _RANK_HOSTS:
            # The queue holds as much as the link's delay. With a shorter queue reno alone cannot
            # keep the link full.
            queue_ms = max(25, link.round_trip_ms)
            network.shape(host, link.megabits_per_s * 1_000_000, queue_ms)
        context.progress(f"{link.setting}: one TCP stream")
        goodput = goodput_bytes_per_s(
            network, _RANK_HOSTS[0], _FAR_HOST, link.megabits_per_s, 10 * size
        )
        network.delay(_FAR_HOST, link.round_trip_ms / 2)
        cluster = Cluster(network, _RANK_HOSTS, (_FAR_HOST,))
        makers: list[tuple[str, Make]] = [
            (TALWEG_IN_PLACE, partial(hosts.talweg, programs, cluster, TALWEG_IN_PLACE)),
            (SOCKET_PS, partial(hosts.socket_ps, programs, cluster)),
        ]
        cases = [Case(format_bytes(size), (size,))]
        results = run_beside(context, "long_links", link.setting, makers, len(_RANK_HOSTS), cases)
    best_s = link.optimum_s(size, goodput)
    for result in add_optimum(results, goodput, best_s):
        result.extra["of_optimum"] = best_s / result.median_s
    return results


def bar(link: Link, results: list[Result]) -> Bar:
    text = f"{link.setting}, {results[0].case}: the optimum over the time"
    ours = find(results, link.setting, results[0].case, TALWEG_IN_PLACE)
    if ours is None:
        return Bar(text, f">= {_OF_OPTIMUM}", None, False)
    share = ours.extra["of_optimum"]
    return Bar(text, f">= {_OF_OPTIMUM}", share, share >= _OF_OPTIMUM)
