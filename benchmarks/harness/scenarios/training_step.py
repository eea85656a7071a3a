# SPDX-License-Identifier: Apache-2.0
"""Measures what communication adds to real training steps of two processes on one node."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from harness.contender import Command, Contender
from harness.contenders import Programs, python_ranks, talweg_python
from harness.figures import format_seconds, interval, median
from harness.measure import Case, Effort, Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find, run_beside

TITLE = "A training step"
_SETTING = "2 processes"
_RANKS = 2
_NONE, _BARRIER, _DDP, _NCCL, _OPTIMIZER, _HOOK, _BACKEND = (
    "no communication",
    "a barrier, nothing else",
    "DDP over Gloo",
    "DDP over NCCL",
    "DistributedOptimizer",
    "DDP with Talweg's hook",
    "DDP over the backend talweg",
)
_OF_DDP = 1 / 3
# A step is long, so a batch of steps needs more time than a batch of push_pulls.
_BATCH_S = 4.0
_STEPS_MIN = 4

# The heap keeps freed memory, as far as glibc allows that. Otherwise it is chance whether a process
# gives memory back to the kernel and takes it again in each step. Then a step has no page faults,
# or 18,000 of them in 30 ms.
STEADY_HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}

# The model and the batch of each process.
_CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("tiny", 2),),
    "quick": (("mlp", 32),),
    "default": (("mlp", 32), ("resnet18", 4), ("resnet18", 16)),
    "full": (("mlp", 8), ("mlp", 32), ("mlp", 128), ("resnet18", 4), ("resnet18", 16)),
}


def talweg_ranks(
    programs: Programs,
    peer: str,
    manner: str,
    name: str,
    network: Sequence[str],
    variables: Mapping[str, str],
    python: str = sys.executable,
) -> Contender:
    """Returns a job on one node whose ranks run `peer`."""
    run = [str(programs.tool), "run", "--nodes=1", f"--ranks-per-node={_RANKS}", "--"]
    rank = talweg_python(programs, str(programs.peers / peer), manner, python=python)
    environment = {**rank.environment, "GLOO_SOCKET_IFNAME": "lo", **variables}
    return Contender(name, _RANKS, [Command((*network, *run, *rank.line), environment)])


def makers(
    programs: Programs,
    variables: Mapping[str, str],
    with_nccl: bool = False,
    with_backend: bool = False,
) -> list[tuple[str, Make]]:
    """Returns the trainers without communication and with each contender's.

    Their ranks get `variables`.
    """
    network = programs.in_own_network()
    peer = str(programs.peers / "training_step.py")
    peers = {_NONE: "none", _DDP: "ddp", **({_NCCL: "nccl"} if with_nccl else {})}
    ours = {_BARRIER: "barrier", _OPTIMIZER: "optimizer", _HOOK: "hook"}
    if with_backend:
        ours[_BACKEND] = "ddp_talweg"
    found: list[tuple[str, Make]] = [
        (name, partial(python_ranks, name, _RANKS, network, [peer, manner], dict(variables)))
        for name, manner in peers.items()
    ]
    found += [
        (
            name,
            partial(talweg_ranks, programs, "training_step.py", manner, name, network, variables),
        )
        for name, manner in ours.items()
    ]
    return found


def run(context: Context) -> Section:
    contenders = makers(context.programs, STEADY_HEAP)
    return measure(context, TITLE, contenders, _CASES[context.mode], _OF_DDP)


def measure_steps(
    context: Context,
    scenario: str,
    setting: str,
    contenders: Sequence[tuple[str, Make]],
    cases: Sequence[tuple[str, int]],
) -> list[Result]:
    """Measures the steps of all contenders in turn, with two ranks each.

    A case is a model and the batch of a rank.
    """
    effort = context.effort
    # A rank that is late to a repetition's first step delays everybody, so that step is not
    # measured.
    steps_min = 1 if context.mode == "smoke" else _STEPS_MIN
    context.effort = Effort(effort.repetitions, effort.batch_s * _BATCH_S, math.inf, steps_min)
    results: list[Result] = []
    try:
        for model, batch in cases:
            # For the workers the dtype is the model, and the bytes are the batch.
            case = Case(f"{model}, batch {batch}", (batch,), model)
            results += run_beside(context, scenario, setting, contenders, _RANKS, [case])
    finally:
        context.effort = effort
    return results


def measure(
    context: Context,
    title: str,
    contenders: Sequence[tuple[str, Make]],
    cases: Sequence[tuple[str, int]],
    of_ddp: float | None,
) -> Section:
    """Measures what each contender adds to a step.

    `of_ddp` is the bar for Talweg's added time, as a share of DDP's.
    """
    section = Section(title)
    results = measure_steps(context, "training_step", _SETTING, contenders, cases)
    section.failed = any(result.failure for result in results)
    rows = []
    for result in results:
        base = find(results, _SETTING, result.case, _NONE)
        ddp = find(results, _SETTING, result.case, _DDP)
        rows.append(step_row(result, base, ddp))
        section.data.setdefault(result.case, {})[result.contender] = {
            "step_s": result.median_s,
            "p99_s": result.p99_s,
            "added_s": result.median_s - base.median_s if base else None,
            "added_of_ddp_interval": of_other_interval(result, base, ddp),
            "cpu_s_per_step": cpu_s_per_step(result),
            "memory_bytes": result.memory_bytes,
        }
    section.bars = [] if of_ddp is None else bars(results, of_ddp)
    head = ["model", "how", "step", "p99", "added", "of DDP over Gloo's", "CPU a step"]
    section.text = markdown_table(head, rows) + (
        "\nOne thread a process, SGD with momentum, gradient_as_bucket_view for DDP. `mlp` has 24.9 M\n"
        "parameters, `resnet18` 11.2 M (pictures of 32 x 32). All jobs take turns on the same machine.\n"
        "`added` is the median step less that of two processes that do not communicate. The column beside\n"
        "it is a multiple of what DDP over Gloo adds; nine in ten draws of as many repetitions lie there.\n"
        "With only a barrier after each backward pass, a step takes as long as the slower rank's. No\n"
        "averaging can add less. On CPUs every contender's heap keeps freed memory\n"
        "(`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`).\n"
    )
    return section


def cpu_s_per_step(result: Result) -> float:
    """Returns the CPU seconds of all processes of the job in one step of all ranks."""
    return result.cpu_s_per_gigabyte * result.total_bytes * 1e-9 * result.rank_count


def of_other_interval(
    result: Result, base: Result | None, ddp: Result | None
) -> tuple[float, float] | None:
    """Returns the bounds, for nine draws in ten, of `result`'s added time as a multiple of `ddp`'s.

    None if `ddp` adds nothing in one of the draws, because the multiple means nothing then.
    """
    if base is None or ddp is None or result.contender in (base.contender, ddp.contender):
        return None
    no_communication, gloo, ours = base.medians_s, ddp.medians_s, result.medians_s

    def added_of_ddp(drawn: Sequence[int]) -> float:
        step, over_gloo, without = (
            median([medians[i] for i in drawn]) for medians in (ours, gloo, no_communication)
        )
        return (step - without) / (over_gloo - without) if over_gloo > without else math.inf

    lowest, highest = interval(added_of_ddp, min(len(ours), len(gloo), len(no_communication)))
    return (lowest, highest) if math.isfinite(highest) else None


def step_row(result: Result, base: Result | None, ddp: Result | None) -> list[str]:
    if result.failure:
        return [result.case, result.contender, "failed", "", "", "", ""]
    added_s = result.median_s - base.median_s if base else 0.0
    bounds = of_other_interval(result, base, ddp)
    return [
        result.case,
        result.contender,
        format_seconds(result.median_s),
        format_seconds(result.p99_s),
        "" if base is None or base is result else f"{added_s * 1e3:+.3g} ms",
        f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "",
        format_seconds(cpu_s_per_step(result)),
    ]


def added_bar(
    results: Sequence[Result],
    setting: str,
    case: str,
    names: tuple[str, str, str],
    wanted: float,
    text: str,
) -> Bar:
    """Returns a bar: Talweg may add at most `wanted` of what a peer adds to the base's step.

    `names` are the base, the peer and Talweg's contender.
    """
    base, peer, ours = (find(results, setting, case, name) for name in names)
    measured = None
    if base and peer and ours and peer.median_s > base.median_s:
        measured = (ours.median_s - base.median_s) / (peer.median_s - base.median_s)
    holds = measured is not None and measured <= wanted
    return Bar(f"{case}, {text}", f"<= {wanted:.3g}", measured, holds)


def bars(results: list[Result], of_ddp: float) -> list[Bar]:
    return [
        added_bar(
            results,
            _SETTING,
            case,
            (_NONE, _DDP, name),
            of_ddp,
            f"{name}: added time over what DDP with Gloo adds",
        )
        for case in dict.fromkeys(result.case for result in results)
        for name in (_OPTIMIZER, _HOOK)
    ]
