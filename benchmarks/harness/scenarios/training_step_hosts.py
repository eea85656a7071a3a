# SPDX-License-Identifier: Apache-2.0
"""Measures what communication adds to training steps on two hosts, beside Horovod with Gloo."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

from netns import Network

from harness import hosts
from harness.contender import Contender
from harness.contenders import Missing, talweg_python
from harness.hosts import Cluster
from harness.measure import Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find, noted
from harness.scenarios.training_step import STEADY_HEAP, added_bar, measure_steps, step_row

TITLE = "A training step on two hosts"
_SETTING = "2 hosts"
_NONE, _DDP, _HOROVOD, _OPTIMIZER = (
    "no communication",
    "DDP over Gloo",
    "Horovod with Gloo",
    "DistributedOptimizer",
)
_OF_HOROVOD = 1 / 2
_ROOT = Path(__file__).resolve().parents[3]

# The model and the batch of each process.
_CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("tiny", 2),),
    "quick": (("mlp", 32),),
    "default": (("mlp", 32), ("resnet18", 16)),
    "full": (("mlp", 8), ("mlp", 32), ("mlp", 128), ("resnet18", 4), ("resnet18", 16)),
}


def horovod_python(root: Path) -> str:
    """Returns the Python of the checkout's Horovod. Raises Missing if it cannot import Horovod."""
    venv = root / ".cache" / "venv-horovod"
    python = str(venv / "bin" / "python")
    line = [python, "-P", "-c", "import horovod.torch"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError:
        raise Missing(
            f"there is no Horovod in {venv}; benchmarks/build_horovod builds it"
        ) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Missing(f"{venv} is broken ({reason}); benchmarks/build_horovod makes it anew")
    return python


def _measure(context: Context) -> list[Result]:
    programs = context.programs
    peer = str(programs.peers / "training_step.py")
    names = ("host0", "host1")
    with Network(names, programs.congestion_control) as network:
        cluster = Cluster(network, names, names)

        def own(name: str, manner: str) -> Contender:
            return hosts.python_ranks(cluster, name, [peer, manner], STEADY_HEAP)

        def horovod() -> Contender:
            line, python = [peer, "horovod"], horovod_python(_ROOT)
            return hosts.horovod(cluster, _HOROVOD, python, programs.peers, line, STEADY_HEAP)

        def ours() -> Contender:
            rank = talweg_python(programs, peer, "optimizer")
            rank.environment.update({"OMP_NUM_THREADS": "1", **STEADY_HEAP})
            return hosts.talweg(programs, cluster, _OPTIMIZER, rank=rank)

        contenders: list[tuple[str, Make]] = [
            (_NONE, partial(own, _NONE, "none")),
            (_DDP, partial(own, _DDP, "ddp")),
            (_HOROVOD, horovod),
            (_OPTIMIZER, ours),
        ]
        cases = _CASES[context.mode]
        return measure_steps(context, "training_step_hosts", _SETTING, contenders, cases)


def run(context: Context) -> Section:
    section = Section(TITLE)
    with noted(context, section):
        _tell(section, _measure(context))
    return section


def _tell(section: Section, results: list[Result]) -> None:
    section.failed = any(result.failure for result in results)
    rows = []
    for result in results:
        base = find(results, _SETTING, result.case, _NONE)
        theirs = find(results, _SETTING, result.case, _HOROVOD)
        rows.append(step_row(result, base, theirs))
        section.data.setdefault(result.case, {})[result.contender] = {
            "step_s": result.median_s,
            "p99_s": result.p99_s,
            "added_s": result.median_s - base.median_s if base else None,
        }
    section.bars = bars(results)
    head = ["model", "how", "step", "p99", "added", "of Horovod's", "CPU a step"]
    section.text = markdown_table(head, rows) + (
        "\nOne process on each of two hosts, which are network namespaces of this machine; their links\n"
        "are not shaped. One thread a process, SGD with momentum. Talweg has an aggregator on each host.\n"
        "`added` is the median step less that of two processes that do not communicate. The column\n"
        "beside it is a multiple of what Horovod with Gloo adds; nine in ten draws of as many\n"
        "repetitions lie there.\n"
    )


def bars(results: list[Result]) -> list[Bar]:
    """Returns the bars; none if Horovod is not installed, which a note says."""
    text = f"{_OPTIMIZER}: added time over what {_HOROVOD} adds"
    return [
        added_bar(results, _SETTING, case, (_NONE, _HOROVOD, _OPTIMIZER), _OF_HOROVOD, text)
        for case in dict.fromkeys(result.case for result in results)
        if any((each.case, each.contender) == (case, _HOROVOD) for each in results)
    ]
