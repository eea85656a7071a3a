# SPDX-License-Identifier: Apache-2.0
"""Measures steps of DDP and FSDP2 over the backend "talweg" of torch.distributed, beside Gloo."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from netns import Network

from harness import hosts
from harness.contender import Contender
from harness.contenders import GLOO, TALWEG, Programs, python_ranks, talweg_python
from harness.figures import format_seconds, optimum_s
from harness.goodput import goodput_bytes_per_s
from harness.hosts import Cluster
from harness.measure import Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find, noted, ratio_bar, run_beside
from harness.scenarios import collectives, training_step

TITLE = "A backend of torch.distributed"
_SETTING = "2 processes"
_RANKS = 2
_BARRIER = "a barrier, nothing else"
_DDP_ALONE = "DDP that sums nothing, and a barrier"
_DDP_GLOO, _DDP = "DDP over Gloo", "DDP over Talweg"
_FSDP_GLOO, _FSDP = "FSDP2 over Gloo", "FSDP2 over Talweg"
# Talweg's contender, the peer, and the bar: the added time as a share of the peer's.
_PAIRS = ((_DDP, _DDP_GLOO, 1 / 3), (_FSDP, _FSDP_GLOO, 1 / 2))
_LATENCY_OF_GLOO = 1 / 8
_BETWEEN_HOSTS = "2 hosts, 1 Gb/s"
_LINK = 1000  # Mb/s
_OF_OPTIMUM = 1.05
_PARAMETERS = {"tiny": 314, "mlp": 24_922_442, "resnet18": 11_173_962}

_CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("tiny", 2),),
    "quick": (("mlp", 32),),
    "default": (("mlp", 32), ("resnet18", 16)),
    "full": (("mlp", 8), ("mlp", 32), ("mlp", 128), ("resnet18", 4), ("resnet18", 16)),
}


def makers(programs: Programs, variables: Mapping[str, str]) -> list[tuple[str, Make]]:
    network = programs.in_own_network()
    peer = str(programs.peers / "training_step.py")
    found: list[tuple[str, Make]] = [
        (
            name,
            partial(
                training_step.talweg_ranks,
                programs,
                "training_step.py",
                manner,
                name,
                network,
                variables,
            ),
        )
        for name, manner in (
            (_BARRIER, "barrier"),
            (_DDP_ALONE, "ddp_alone"),
            (_DDP, "ddp_talweg"),
            (_FSDP, "fsdp_talweg"),
        )
    ]
    found += [
        (name, partial(python_ranks, name, _RANKS, network, [peer, manner], dict(variables)))
        for name, manner in ((_DDP_GLOO, "ddp"), (_FSDP_GLOO, "fsdp"))
    ]
    return found


def _between_hosts(context: Context, section: Section) -> None:
    """Measures DDP over shaped links: the added time over the least time that the links need."""
    programs, names = context.programs, ("host0", "host1")
    with Network(names, programs.congestion_control) as network:
        for host in names:
            network.shape(host, _LINK * 1_000_000)
        context.progress(f"{_BETWEEN_HOSTS}: one TCP stream")
        goodput = goodput_bytes_per_s(network, *names, _LINK)
        cluster = Cluster(network, names, names)

        def ours(name: str, manner: str, index: int) -> Contender:
            rank = talweg_python(programs, str(programs.peers / "training_step.py"), manner)
            rank.environment.update({"OMP_NUM_THREADS": "1", **training_step.STEADY_HEAP})
            return hosts.talweg(programs, cluster, name, index, rank)

        contenders: list[tuple[str, Make]] = [
            (_BARRIER, partial(ours, _BARRIER, "barrier", 0)),
            (_DDP, partial(ours, _DDP, "ddp_talweg", 1)),
        ]
        cases = _CASES[context.mode]
        steps = training_step.measure_steps(
            context, "torch_backend", _BETWEEN_HOSTS, contenders, cases
        )
    section.failed = section.failed or any(result.failure for result in steps)
    rows = []
    data = section.data.setdefault(_BETWEEN_HOSTS, {})
    for model, batch in cases:
        case = f"{model}, batch {batch}"
        barrier, ddp = (find(steps, _BETWEEN_HOSTS, case, name) for name in (_BARRIER, _DDP))
        if barrier is None or ddp is None:
            continue
        added_s = ddp.median_s - barrier.median_s
        least_s = optimum_s(len(names), 0, 4 * _PARAMETERS[model], goodput)
        over = added_s / least_s
        data[case] = {"step_s": ddp.median_s, "added_s": added_s, "optimum_s": least_s}
        times = (barrier.median_s, ddp.median_s, added_s, least_s)
        rows.append([case, *map(format_seconds, times), f"{over:.3f}"])
        text = f"{_BETWEEN_HOSTS}, {case}, {_DDP}: added time over the links' optimum"
        section.bars.append(Bar(text, f"<= {_OF_OPTIMUM:g}", over, over <= _OF_OPTIMUM))
    head = ["between hosts", _BARRIER, _DDP, "added", "optimum", "added over it"]
    section.text += "\n" + markdown_table(head, rows)
    section.text += (
        f"\n{_BETWEEN_HOSTS}, each with a rank and an aggregator. `optimum`: the least time in which the\n"
        "links carry the gradients' sum. A part of it passes during the backward pass.\n"
    )


def run(context: Context) -> Section:
    section = Section(TITLE)
    programs, network = context.programs, context.programs.in_own_network()
    steps = training_step.measure_steps(
        context,
        "torch_backend",
        _SETTING,
        makers(programs, training_step.STEADY_HEAP),
        _CASES[context.mode],
    )
    small: list[tuple[str, Make]] = [
        (TALWEG, partial(collectives.talweg, programs, _RANKS, network)),
        (GLOO, partial(collectives.gloo, programs, _RANKS, network)),
    ]
    cases = [collectives.case_of("all_reduce", 4096)]
    calls = run_beside(context, "torch_backend", _SETTING, small, _RANKS, cases)
    section.failed = any(result.failure for result in [*steps, *calls])
    rows = []
    for result in steps:
        barrier = find(steps, _SETTING, result.case, _BARRIER)
        rows.append(_row(result, barrier))
        section.data.setdefault(result.case, {})[result.contender] = {
            "step_s": result.median_s,
            "p99_s": result.p99_s,
            "added_s": result.median_s - barrier.median_s if barrier else None,
            "cpu_s_per_step": training_step.cpu_s_per_step(result),
        }
    for result in calls:
        rows.append(_row(result, None))
        section.data.setdefault(result.case, {})[result.contender] = {"call_s": result.median_s}
    section.bars = bars(steps, calls)
    head = ["what", "how", "median", "p99", "added", "CPU a step"]
    section.text = markdown_table(head, rows) + (
        "\nOne thread a process, SGD with momentum. `added` is the median step less that of two\n"
        "processes that only wait for each other after each backward pass. DDP that sums nothing shows\n"
        "which part of that time is DDP's own. FSDP2 shards each layer and the model\n"
        "(`fully_shard`). Talweg and Gloo are named in `init_process_group`; nothing else differs\n"
        "between the programs.\n"
    )
    with noted(context, section, ", between hosts"):
        _between_hosts(context, section)
    return section


def _row(result: Result, barrier: Result | None) -> list[str]:
    if result.failure:
        return [result.case, result.contender, "failed", "", "", ""]
    added = "" if barrier is None or barrier is result else result.median_s - barrier.median_s
    return [
        result.case,
        result.contender,
        format_seconds(result.median_s),
        format_seconds(result.p99_s),
        f"{added * 1e3:+.3g} ms" if isinstance(added, float) else "",
        format_seconds(training_step.cpu_s_per_step(result)),
    ]


def bars(steps: list[Result], calls: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    for case in dict.fromkeys(result.case for result in steps):
        for ours_name, theirs_name, wanted in _PAIRS:
            names = (_BARRIER, theirs_name, ours_name)
            text = f"{ours_name}: added time over what {theirs_name} adds"
            found.append(training_step.added_bar(steps, _SETTING, case, names, wanted, text))
    for case in dict.fromkeys(result.case for result in calls):
        ours, theirs = (find(calls, _SETTING, case, name) for name in (TALWEG, GLOO))
        text = f"{_SETTING}, {case}: latency over {GLOO}'s"
        found.append(ratio_bar(text, ours, theirs, _LATENCY_OF_GLOO, lambda r: r.median_s, True))
    return found
