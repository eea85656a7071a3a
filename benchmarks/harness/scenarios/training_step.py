# SPDX-License-Identifier: Apache-2.0
"""Real training steps of two processes on one node: what communication adds to their time."""

from __future__ import annotations

from functools import partial

from harness.contender import Command, Contender
from harness.contenders import Programs, python_ranks, talweg_python
from harness.figures import format_seconds
from harness.measure import Case, Effort, Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find, run_beside

TITLE = "A training step"
_SETTING = "2 processes"
_RANKS = 2
_NONE, _DDP, _OPTIMIZER, _HOOK = (
    "no communication",
    "DDP over Gloo",
    "DistributedOptimizer",
    "DDP with Talweg's hook",
)
_OF_DDP = 1 / 3
# A step is long: a batch of them needs more than a batch of push_pulls.
_BATCH_S = 4.0

# Model and batch of each process.
_CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("tiny", 2),),
    "quick": (("mlp", 32),),
    "default": (("mlp", 32), ("resnet18", 4), ("resnet18", 16)),
    "full": (("mlp", 8), ("mlp", 32), ("mlp", 128), ("resnet18", 4), ("resnet18", 16)),
}


def _talweg(programs: Programs, manner: str, name: str, network: tuple[str, ...]) -> Contender:
    run = [str(programs.tool), "run", "--nodes=1", f"--ranks-per-node={_RANKS}", "--"]
    rank = talweg_python(programs, str(programs.peers / "training_step.py"), manner)
    environment = {**rank.environment, "GLOO_SOCKET_IFNAME": "lo"}
    return Contender(name, _RANKS, [Command((*network, *run, *rank.line), environment)])


def run(context: Context) -> Section:
    programs = context.programs
    network = programs.in_own_network()
    section = Section(TITLE)
    peer = str(programs.peers / "training_step.py")
    makers: list[tuple[str, Make]] = [
        (_NONE, partial(python_ranks, _NONE, _RANKS, network, [peer, "none"], {})),
        (_DDP, partial(python_ranks, _DDP, _RANKS, network, [peer, "ddp"], {})),
        (_OPTIMIZER, partial(_talweg, programs, "optimizer", _OPTIMIZER, network)),
        (_HOOK, partial(_talweg, programs, "hook", _HOOK, network)),
    ]
    effort = context.effort
    context.effort = Effort(effort.repetitions, effort.batch_s * _BATCH_S)
    results: list[Result] = []
    try:
        for model, batch in _CASES[context.mode]:
            # The workers take the dtype for the model and the bytes for the batch.
            case = Case(f"{model}, batch {batch}", (batch,), model)
            results += run_beside(context, "training_step", _SETTING, makers, _RANKS, [case])
    finally:
        context.effort = effort
    section.failed = any(result.failure for result in results)
    rows = []
    for result in results:
        base = find(results, _SETTING, result.case, _NONE)
        row = step_row(result, base)
        rows.append(row)
        section.data.setdefault(result.case, {})[result.contender] = {
            "step_s": result.median_s,
            "p99_s": result.p99_s,
            "added_s": result.median_s - base.median_s if base else None,
            "cpu_s_per_step": cpu_s_per_step(result),
            "memory_bytes": result.memory_bytes,
        }
    section.bars = bars(results)
    head = ["model", "how", "step", "p99", "added", "CPU a step"]
    section.text = markdown_table(head, rows) + (
        "\nOne thread a process, SGD with momentum, gradient_as_bucket_view for DDP. `mlp` has 24.9 M parameters,\n"
        "`resnet18` 11.2 M (pictures of 32 x 32). All four jobs take turns on the same machine; what is added is\n"
        "the median step less that of two processes that do not communicate.\n"
    )
    return section


def cpu_s_per_step(result: Result) -> float:
    """Of all processes of the job, a step of all ranks."""
    return result.cpu_s_per_gigabyte * result.total_bytes * 1e-9 * result.rank_count


def step_row(result: Result, base: Result | None) -> list[str]:
    if result.failure:
        return [result.case, result.contender, "failed", "", "", ""]
    added_s = result.median_s - base.median_s if base else 0.0
    return [
        result.case,
        result.contender,
        format_seconds(result.median_s),
        format_seconds(result.p99_s),
        "" if base is None or base is result else f"{added_s * 1e3:+.3g} ms",
        format_seconds(cpu_s_per_step(result)),
    ]


def bars(results: list[Result]) -> list[Bar]:
    found: list[Bar] = []
    for case in dict.fromkeys(result.case for result in results):
        base, ddp = (find(results, _SETTING, case, name) for name in (_NONE, _DDP))
        for name in (_OPTIMIZER, _HOOK):
            ours = find(results, _SETTING, case, name)
            text = f"{case}, {name}: added time over what DDP with Gloo adds"
            measured = None
            if base and ddp and ours and ddp.median_s > base.median_s:
                measured = (ours.median_s - base.median_s) / (ddp.median_s - base.median_s)
            holds = measured is not None and measured <= _OF_DDP
            found.append(Bar(text, f"<= {_OF_DDP:.3g}", measured, holds))
    return found
