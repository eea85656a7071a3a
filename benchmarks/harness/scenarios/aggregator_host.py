# SPDX-License-Identifier: Apache-2.0
"""Measures hosts with one rank each and hosts that only aggregate, over TCP."""

from __future__ import annotations

from functools import partial

from netns import Network

from harness import hosts
from harness.contenders import (
    GLOO,
    TALWEG,
    TALWEG_IN_PLACE,
    TALWEG_OTHER,
    TALWEG_TCP,
    TALWEG_TORCH,
    torch_gradients,
)
from harness.figures import format_bytes, parse_bytes
from harness.hosts import SOCKET_PS, TCP_LIMIT, Cluster
from harness.measure import Case, Result
from harness.report import Bar
from harness.scenario import (
    Context,
    Make,
    Section,
    fastest,
    find,
    noted,
    ratio_bar,
    run_beside,
)

TITLE = "Aggregator hosts over TCP"
SMALL, SMALL_COUNT = parse_bytes("64KiB"), 64

_CURVE = ("64KiB", "256KiB", "1MiB", "4MiB", "16MiB", "64MiB")
_FULL = (*_CURVE[:-1], "128KiB", "512KiB", "2MiB", "8MiB", "32MiB", "64MiB")
# The most memory, as a multiple of what a round in one place needs.
_MEMORY_OVER_NEEDED = 1.2
# The sizes for each number of hosts with ranks and of aggregator hosts, by mode.
_SIZES: dict[str, dict[tuple[int, int], tuple[str, ...]]] = {
    "smoke": {(2, 1): ("64KiB",)},
    "quick": {(2, 1): ("64KiB", "4MiB", "16MiB")},
    "default": {(2, 1): _CURVE, (2, 2): ("4MiB", "64MiB"), (4, 2): ("4MiB", "64MiB")},
    "full": {(2, 1): _FULL, (2, 2): _FULL, (4, 1): _FULL, (4, 2): _FULL},
}


def _setting(rank_hosts: int, aggregators: int) -> str:
    return f"{rank_hosts} hosts, {aggregators} aggregator host{'s' if aggregators > 1 else ''}"


def _small_case(mode: str) -> Case:
    count = 4 if mode == "smoke" else SMALL_COUNT
    return Case(f"{count} x {format_bytes(SMALL)}", (SMALL,) * count)


def run(context: Context) -> Section:
    section = Section(TITLE)
    with noted(context, section):
        for (ranks, aggregators), sizes in _SIZES[context.mode].items():
            section.results += _run_setting(context, ranks, aggregators, sizes)
    section.bars = bars(section.results)
    section.text = (
        "Each host is a network namespace, joined to the others by a veth pair and a bridge. The socket\n"
        "server is the parameter server of `benchmarks/baselines/socket_ps.cc`, one on each aggregator\n"
        "host. The TCP limit is the same workers against servers that sum nothing and send back what\n"
        "they receive. `64 x 64 KiB` is a round of 64 tensors: a rank pushes all, then waits. With own\n"
        "buffers, a rank writes gradients into its Talweg client's memory (`talweg_contribution`), so\n"
        "they are not copied there. The result is copied to another buffer while it arrives. The bars\n"
        "take the faster way, as they do with peers. The bar of 64 KiB also counts Talweg's own TCP,\n"
        "which has own buffers too. Torch's gradients are those of a DistributedOptimizer, which here\n"
        "averages gradients that are changed in place. What one place needs is each rank's\n"
        "gradients and, at each aggregator, its share of them (n + 1) times for n hosts with ranks: once\n"
        "from each rank, and once as the result.\n"
    )
    return section


def _run_setting(
    context: Context, ranks: int, aggregators: int, sizes: tuple[str, ...]
) -> list[Result]:
    programs = context.programs
    rank_hosts = tuple(f"host{index}" for index in range(ranks))
    aggregator_hosts = tuple(f"aggregator{index}" for index in range(aggregators))
    with Network([*rank_hosts, *aggregator_hosts], programs.congestion_control) as network:
        cluster = Cluster(network, rank_hosts, aggregator_hosts)
        makers: list[tuple[str, Make]] = [
            (TALWEG, partial(hosts.talweg, programs, cluster)),
            (TALWEG_IN_PLACE, partial(hosts.talweg, programs, cluster, TALWEG_IN_PLACE, 1)),
            (TALWEG_TCP, partial(hosts.talweg, programs, cluster, TALWEG_TCP, 3)),
            (SOCKET_PS, partial(hosts.socket_ps, programs, cluster)),
            (TCP_LIMIT, partial(hosts.tcp_limit, programs, cluster)),
        ]
        if programs.other_tool:
            other = partial(hosts.talweg, programs.other(), cluster, TALWEG_OTHER, 2)
            makers.append((TALWEG_OTHER, other))
        # Importing torch is slow, and other scenarios run Gloo in smoke mode.
        if context.mode != "smoke":
            makers.append((GLOO, partial(hosts.gloo, programs, cluster)))
        cases = [_small_case(context.mode)]
        cases += [Case(format_bytes(size), (size,)) for size in map(parse_bytes, sizes)]
        lives = [cases]
        if context.mode in ("default", "full"):
            rank = torch_gradients(programs)
            maker = partial(hosts.talweg, programs, cluster, TALWEG_TORCH, 4, rank)
            makers.append((TALWEG_TORCH, maker))
            lives = _lives(cases)
        setting = _setting(ranks, aggregators)
        results: list[Result] = []
        for life in lives:
            results += run_beside(context, "aggregator_host", setting, makers, ranks, life)
        return results


def _lives(cases: list[Case]) -> list[list[Case]]:
    """Returns the cases that the same processes run. A large case has its own: what they hold when
    it is measured belongs to the case.
    """
    large = [case for case in cases if len(case.tensor_bytes) == 1 and _is_large(case.total_bytes)]
    return [[case for case in cases if case not in large], *([case] for case in large)]


def _is_large(total_bytes: int) -> bool:
    return total_bytes >= parse_bytes("4MiB")


def _latency_bar(results: list[Result], theirs: Result) -> Bar:
    who = (TALWEG, TALWEG_IN_PLACE, TALWEG_TCP)
    return ratio_bar(
        f"{theirs.setting}, {theirs.case}: a round's time over the socket server's",
        fastest(results, theirs.setting, theirs.case, who),
        None if theirs.failure else theirs,
        1.5,
        lambda r: r.median_s,
        True,
    )


def _memory_bar(ours: Result) -> Bar:
    """Compares the memory of the whole job with what one place for each tensor needs.

    That is each rank's gradients and, at each aggregator, its share of a tensor once from each of
    the n ranks and once as the result: (n + 1) shares.
    """
    needed = ours.total_bytes * (ours.rank_count + ours.rank_count + 1)
    over = ours.memory_bytes / needed
    text = f"{ours.setting}, {ours.case}, {ours.contender}: memory held over what one place needs"
    return Bar(text, f"<= {_MEMORY_OVER_NEEDED:g}", over, over <= _MEMORY_OVER_NEEDED)


def bars(results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    for theirs in results:
        if theirs.contender != SOCKET_PS:
            continue
        text = f"{theirs.setting}, {theirs.case}: "
        small = theirs.tensor_count > 1
        if not small and theirs.total_bytes == SMALL:
            found.append(_latency_bar(results, theirs))
        if not small and not _is_large(theirs.total_bytes):
            continue
        ways = [("", fastest(results, theirs.setting, theirs.case, (TALWEG, TALWEG_IN_PLACE)))]
        # Only runs that measure torch's gradients give large cases processes of their own.
        by_torch = None if small else find(results, theirs.setting, theirs.case, TALWEG_TORCH)
        if by_torch is not None:
            ways.append(("torch's gradients, ", by_torch))
        for way, ours in ways:
            found.append(
                ratio_bar(
                    f"{text}{way}GB/s as a multiple of the socket server's",
                    ours,
                    None if theirs.failure else theirs,
                    1.2 if small else 0.95,
                    lambda r: r.gigabytes_per_s_median,
                )
            )
            if not small:
                cpu = f"{text}{way}CPU a GB over the socket server's"
                found.append(
                    ratio_bar(cpu, ours, theirs, 1.15, lambda r: r.cpu_s_per_gigabyte, True)
                )
        if by_torch is not None:
            in_place = find(results, theirs.setting, theirs.case, TALWEG_IN_PLACE)
            found += [_memory_bar(each) for each in (in_place, by_torch) if each is not None]
    return found
