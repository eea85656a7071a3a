# SPDX-License-Identifier: Apache-2.0
"""Measures one aggregator with more and more members, jobs and tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from netns import Network

from harness import hosts
from harness.contender import Batch, Contender
from harness.contenders import talweg_on_one_node
from harness.figures import format_bytes, format_seconds, median, rounds_for
from harness.hosts import Cluster
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section, noted

TITLE = "Growth"
_AGGREGATOR = "talweg-aggregator"
_MEMBER_BYTES, _JOB_BYTES = 4 << 20, 1 << 20
_TENSOR_BYTES = 4096
_CPU_SPREAD, _SHARE_SPREAD, _START_S = 1.2, 0.1, 1.0
_TIMEOUT_S = 300.0

_MEMBERS = {"smoke": (1, 2), "quick": (2, 8), "default": (2, 4, 8, 16), "full": (2, 4, 8, 16, 32)}
_JOBS = {"smoke": (1, 2), "quick": (1, 10), "default": (1, 10, 100), "full": (1, 10, 100)}
# How many of the mode's batches a repetition lasts. The turns of the kernel's scheduler must even
# out over a few dozen rounds of many processes, because they are not the aggregator's unfairness.
_BATCHES = {"members": 2, "jobs": 6}
_ROUNDS_MIN = {"members": 2, "jobs": 40}
_TENSORS = {"smoke": 50, "quick": 10_000, "default": 10_000, "full": 10_000}


@dataclass
class _Grown:
    """One number of members or jobs, and its cost."""

    count: int
    contender: Contender
    idle_bytes: int = 0  # The aggregator's memory before anything was declared.
    batches: list[Batch] = field(default_factory=list)
    memory_bytes: int = 0

    def aggregator_cpu_s_per_gigabyte(self, size: int) -> float:
        """Returns the aggregator's CPU seconds for each GB of contributions."""
        return median(
            [
                each.cpu_s_of_programs.get(_AGGREGATOR, 0.0)
                / (self.count * size * each.rounds)
                * 1e9
                for each in self.batches
            ]
        )

    def daemons_cpu_s_per_gigabyte(self, size: int) -> float:
        """Returns the CPU seconds of all daemons for each GB of contributions."""
        return median(
            [b.cpu_s_of_daemons / (self.count * size * b.rounds) * 1e9 for b in self.batches]
        )

    def gigabytes_per_s(self, size: int) -> float:
        """Returns the contributions of all members or jobs together, in GB/s."""
        return median([self.count * size * b.rounds / b.elapsed_s * 1e-9 for b in self.batches])

    def worst_share(self) -> float:
        """Returns how far the worst job is from its fair share of speed, over all repetitions."""
        times_s = [each.workers_s for each in self.batches]
        return farthest_from_fair([sum(of_job) for of_job in zip(*times_s)])

    def worst_share_of_one(self) -> float:
        """Returns the median of the same figure within one repetition. It includes chance."""
        return median([farthest_from_fair(each.workers_s) for each in self.batches])


def farthest_from_fair(workers_s: Sequence[float]) -> float:
    """Returns how far the worst worker's time is from the mean; 0.1 is 10 % faster or slower."""
    speeds = [1 / worker_s for worker_s in workers_s]
    mean = sum(speeds) / len(speeds)
    return max(abs(speed / mean - 1) for speed in speeds)


def run(context: Context) -> Section:
    section = Section(TITLE)
    parts = (("members", _members), ("jobs", _jobs), ("tensors", _tensors))
    for name, part in parts:
        with noted(context, section, f" in {name}"):
            section.text += part(context, section)
    return section


def _measure(context: Context, what: str, grown: Sequence[_Grown], size: int) -> None:
    """Measures all of them in turn."""
    for each in grown:
        each.idle_bytes = each.contender.memory_of_programs().get(_AGGREGATOR, 0)
    rounds: list[int] = []
    for each in grown:
        context.progress(f"{each.count} {what} warm up")
        first = each.contender.measure("f32", [size], 2, 4, _TIMEOUT_S)
        wanted_s = context.effort.batch_s * _BATCHES[what]
        round_s = first.elapsed_s / first.rounds
        rounds.append(rounds_for(round_s, wanted_s, _ROUNDS_MIN[what], 5000))
    for repetition in range(context.effort.repetitions):
        for each, count in zip(grown, rounds):
            context.progress(f"{each.count} {what}, {repetition + 1}")
            each.batches.append(each.contender.measure("f32", [size], 1, count, _TIMEOUT_S))
    for each in grown:
        held = each.contender.memory_of_programs().get(_AGGREGATOR, 0)
        each.memory_bytes = max(0, held - each.idle_bytes)


def _grow(
    context: Context,
    what: str,
    counts: Sequence[int],
    size: int,
    host_count: int,
    make: Callable[[Cluster, int, int], Contender],
) -> list[_Grown]:
    names = [*(f"host{index}" for index in range(host_count)), "aggregator"]
    with ExitStack() as stack:
        network = stack.enter_context(Network(names, context.programs.congestion_control))
        grown = []
        for index, count in enumerate(counts):
            context.progress(f"{count} {what} start")
            cluster = Cluster(network, tuple(names[: min(count, host_count)]), ("aggregator",))
            grown.append(_Grown(count, stack.enter_context(make(cluster, count, index))))
        _measure(context, what, grown, size)
    return grown


def _members(context: Context, section: Section) -> str:
    counts = _MEMBERS[context.mode]

    def make(cluster: Cluster, count: int, index: int) -> Contender:
        return hosts.talweg(context.programs, cluster, f"{count} members", index)

    grown = _grow(context, "members", counts, _MEMBER_BYTES, max(counts), make)
    costs = [each.aggregator_cpu_s_per_gigabyte(_MEMBER_BYTES) for each in grown]
    middle = (max(costs) + min(costs)) / 2
    spread = max(costs) / middle if middle else None
    section.bars.append(
        Bar(
            f"{counts[0]} to {counts[-1]} members: the aggregator's CPU a contribution byte over the middle",
            f"<= {_CPU_SPREAD}",
            spread,
            spread is not None and spread <= _CPU_SPREAD,
        )
    )
    rows = []
    for each, cost in zip(grown, costs):
        formula = (each.count + 1) * _MEMBER_BYTES
        speed = each.gigabytes_per_s(_MEMBER_BYTES)
        row = [str(each.count), f"{speed:.3g}", f"{cost:.3g}"]
        rows.append([*row, format_bytes(each.memory_bytes), format_bytes(formula)])
        section.data.setdefault("members", {})[each.count] = {
            "gigabytes_per_s": speed,
            "aggregator_cpu_s_per_gigabyte": cost,
            "memory_bytes": each.memory_bytes,
            "formula_bytes": formula,
        }
    head = [
        "members",
        "GB/s of contributions",
        "aggregator's CPU s/GB",
        "its memory",
        "(members + 1) x bytes",
    ]
    title = (
        f"One tensor of {format_bytes(_MEMBER_BYTES)}, one host a member, one aggregator host:\n\n"
    )
    return title + markdown_table(head, rows) + "\n"


def _jobs(context: Context, section: Section) -> str:
    counts = _JOBS[context.mode]

    # As many socket servers show what any server's bytes cost when so many processes take turns.
    def make(cluster: Cluster, count: int, index: int) -> Contender:
        start = hosts.socket_ps_jobs if index % 2 else hosts.talweg_jobs
        return start(context.programs, cluster, count, f"{count} jobs", index)

    both = _grow(context, "jobs", [n for n in counts for _ in range(2)], _JOB_BYTES, 1, make)
    grown, sockets = both[::2], both[1::2]
    rows = []
    costs = [each.aggregator_cpu_s_per_gigabyte(_JOB_BYTES) for each in grown]
    for each, cost, beside in zip(grown, costs, sockets):
        share = each.worst_share()
        text = f"{each.count} jobs: how far the farthest is from a fair share"
        section.bars.append(Bar(text, f"<= {_SHARE_SPREAD}", share, share <= _SHARE_SPREAD))
        if each is not grown[0] and costs[0]:
            growth = cost / costs[0]
            text = f"{each.count} jobs: the aggregator's CPU a contribution byte over one job's"
            section.bars.append(Bar(text, f"<= {_CPU_SPREAD}", growth, growth <= _CPU_SPREAD))
        figures = {
            "gigabytes_per_s": each.gigabytes_per_s(_JOB_BYTES),
            "aggregator_cpu_s_per_gigabyte": cost,
            "farthest_from_fair": share,
            "farthest_from_fair_in_one_repetition": each.worst_share_of_one(),
            "socket_servers_cpu_s_per_gigabyte": beside.daemons_cpu_s_per_gigabyte(_JOB_BYTES),
            "socket_servers_farthest_from_fair": beside.worst_share(),
        }
        section.data.setdefault("jobs", {})[each.count] = figures
        forms = (".3g", ".3g", ".1%", ".1%", ".3g", ".1%")
        rows.append([str(each.count), *(f"{n:{form}}" for n, form in zip(figures.values(), forms))])
    head = ["jobs", "GB/s of all", "aggregator's CPU s/GB", "farthest from a fair share"]
    head += ["in one repetition", "socket servers' CPU s/GB", "farthest of theirs"]
    title = (
        f"Jobs of one rank on one host, {format_bytes(_JOB_BYTES)} each, one aggregator for all; "
        "beside them as many socket servers of one worker each:\n\n"
    )
    return title + markdown_table(head, rows) + "\n"


def _tensors(context: Context, section: Section) -> str:
    count = _TENSORS[context.mode]
    times_s: dict[str, list[float]] = {"2 ranks of one node": [], "2 hosts, 1 aggregator host": []}
    # Each starts a whole job, so once is enough for a quick look.
    repetitions = 1 if context.mode == "quick" else context.effort.repetitions
    for repetition in range(repetitions):
        local = context.programs.in_own_network()
        context.progress(f"{count} tensors, {repetition + 1}")
        with talweg_on_one_node(context.programs, 2, local) as job:
            times_s["2 ranks of one node"].append(_start_s(job, count))
        names = ["host0", "host1", "aggregator"]
        with Network(names, context.programs.congestion_control) as network:
            cluster = Cluster(network, ("host0", "host1"), ("aggregator",))
            with hosts.talweg(context.programs, cluster) as job:
                times_s["2 hosts, 1 aggregator host"].append(_start_s(job, count))
    rows = []
    for where, each_s in times_s.items():
        start_s = median(each_s)
        text = f"{where}: seconds from nothing to the first sum of {count} tensors"
        section.bars.append(Bar(text, f"< {_START_S:g}", start_s, start_s < _START_S))
        section.data.setdefault("tensors", {})[where] = start_s
        rows.append([where, format_seconds(start_s)])
    title = f"{count} tensors of {_TENSOR_BYTES} bytes, declared in one call, then one round of all:\n\n"
    return title + markdown_table(["where", "until the first sums are there"], rows)


def _start_s(job: Contender, count: int) -> float:
    return job.measure("f32", [_TENSOR_BYTES] * count, 0, 1, _TIMEOUT_S).prepare_s
