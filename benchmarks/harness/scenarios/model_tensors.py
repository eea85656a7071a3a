# SPDX-License-Identifier: Apache-2.0
"""Measures the tensors of real models in backward order, beside one tensor of the same size."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from netns import Network

from harness import hosts, models
from harness.contenders import TALWEG, talweg_on_one_node
from harness.hosts import SOCKET_PS, Cluster
from harness.measure import Case, Result
from harness.report import Bar
from harness.scenario import Context, Make, Section, find, noted, ratio_bar, run_beside

TITLE = "A model's tensors"
ONE_TENSOR = "Talweg, one tensor"
_SLOWER_AT_MOST = 1.1
_ABOVE_SHARE_AT_MOST = 1.05
# Two jobs that hold more than this at once do not fit on an ordinary machine.
_TOGETHER_BYTES_MAX = 700_000_000


@dataclass(frozen=True)
class Place:
    """The place of the ranks: hosts, or one node with two ranks if there are no hosts."""

    rank_hosts: int = 0
    aggregator_hosts: int = 0
    megabits_per_s: int = 0  # 0 is unshaped. Otherwise aggregators also run on the ranks' hosts.

    @property
    def setting(self) -> str:
        if not self.rank_hosts:
            return "2 ranks of one node"
        kind = "more" if self.megabits_per_s else "aggregator hosts"
        text = f"{self.rank_hosts} hosts, {self.aggregator_hosts} {kind}"
        return f"{self.megabits_per_s} Mb/s, {text}" if self.megabits_per_s else text


_NODE, _TCP, _SHARES, _SHAPED = Place(), Place(2, 1), Place(2, 3), Place(2, 1, 1000)
_WHAT: dict[str, dict[Place, tuple[str, ...]]] = {
    "smoke": {},
    "quick": {_NODE: ("resnet50",), _TCP: ("resnet50",)},
    "default": {
        _NODE: ("resnet50", "vgg16", "bert_large"),
        _TCP: ("resnet50", "vgg16"),
        _SHARES: ("resnet50", "vgg16"),
        _SHAPED: ("resnet50",),
    },
    "full": {place: tuple(models.TITLES) for place in (_NODE, _TCP, _SHARES, _SHAPED)},
}


def _case(name: str) -> Case:
    tensors = models.backward_bytes(models.read(name))
    label = f"{models.TITLES[name]}, {len(tensors)} tensors"
    return Case(label, tensors, merged_for=frozenset([ONE_TENSOR]))


def run(context: Context) -> Section:
    section = Section(TITLE)
    cases = {place: [_case(name) for name in names] for place, names in _WHAT[context.mode].items()}
    if context.mode == "smoke":
        # A few of the small tensors, in every way except the shaped one.
        tiny = Case("tiny", (4096, 8, 12, 65536, 4), merged_for=frozenset([ONE_TENSOR]))
        cases = {_NODE: [tiny], _TCP: [tiny]}
    for place, cases_there in cases.items():
        with noted(context, section, f", {place.setting}"):
            section.results += _run_place(context, place, cases_there)
    section.bars = bars(section.results)
    section.text = (
        "All tensors of a model's gradient are pushed, the last layer's first and the first layer's with\n"
        "the highest priority. Then the rank waits for all. In turn with it, another job pushes one tensor\n"
        "of the same size. The lists are in `benchmarks/models`.\n"
    )
    return section


def _run_place(context: Context, place: Place, cases: list[Case]) -> list[Result]:
    programs = context.programs
    results: list[Result] = []
    with ExitStack() as stack:
        if place.rank_hosts:
            rank_hosts = tuple(f"host{index}" for index in range(place.rank_hosts))
            more = tuple(f"aggregator{index}" for index in range(place.aggregator_hosts))
            names = [*rank_hosts, *more]
            network = stack.enter_context(Network(names, programs.congestion_control))
            for host in names if place.megabits_per_s else []:
                network.shape(host, place.megabits_per_s * 1_000_000)
            aggregators = (*rank_hosts, *more) if place.megabits_per_s else more
            cluster = Cluster(network, rank_hosts, aggregators)
            ours: Make = partial(hosts.talweg, programs, cluster)
            merged: Make = partial(hosts.talweg, programs, cluster, ONE_TENSOR, 1)
            others: list[tuple[str, Make]] = []
            if not place.megabits_per_s:
                others.append((SOCKET_PS, partial(hosts.socket_ps, programs, cluster)))
        else:
            local = programs.in_own_network()
            ours = partial(talweg_on_one_node, programs, 2, local)
            merged = partial(talweg_on_one_node, programs, 2, local, ONE_TENSOR)
            others = []
        for case in cases:
            makers = [(TALWEG, ours), (ONE_TENSOR, merged), *others]
            together = case.total_bytes <= _TOGETHER_BYTES_MAX
            for group in [makers] if together else [[maker] for maker in makers[:2]]:
                results += run_beside(
                    context, "model_tensors", place.setting, group, place.rank_hosts or 2, [case]
                )
            if not together:
                context.notes.append(f"{place.setting}, {case.label}: not in turns, for its size.")
    for result in results:
        result.extra["aggregator_hosts"] = place.aggregator_hosts if not place.megabits_per_s else 0
    return results


def bars(results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    for ours in results:
        if ours.contender != TALWEG or ours.failure:
            continue
        text = f"{ours.setting}, {ours.case}: time over one tensor's"
        merged = find(results, ours.setting, ours.case, ONE_TENSOR)
        found.append(ratio_bar(text, ours, merged, _SLOWER_AT_MOST, lambda r: r.median_s, True))
        aggregators = ours.extra["aggregator_hosts"]
        sent = ours.wire_bytes_of_hosts[-aggregators:] if aggregators > 1 else []
        if sent:
            above = max(sent) * len(sent) / sum(sent)
            text = f"{ours.setting}, {ours.case}: the busiest aggregator's bytes over its share"
            holds = above <= _ABOVE_SHARE_AT_MOST
            found.append(Bar(text, f"<= {_ABOVE_SHARE_AT_MOST}", above, holds))
    return found
