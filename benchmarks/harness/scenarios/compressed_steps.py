# SPDX-License-Identifier: Apache-2.0
"""Measures training steps on two hosts over slow links, with gradients that are compressed."""

from __future__ import annotations

from functools import partial

from netns import Network

from harness import hosts
from harness.contender import Contender
from harness.contenders import TALWEG_INT8, talweg_python
from harness.figures import format_seconds
from harness.hosts import Cluster
from harness.links import rate_text
from harness.measure import Result
from harness.report import markdown_table
from harness.scenario import Context, Make, Section, find, noted
from harness.scenarios.training_step import STEADY_HEAP, measure_steps

TITLE = "Training steps with compressed gradients"
_NONE, _PLAIN = "no communication", "DistributedOptimizer"
# Each contender, and the manner of the peer.
_OURS = {
    _PLAIN: "optimizer",
    TALWEG_INT8: "optimizer",
    "TopK(0.01)": "topk",
    "RandomK(0.01)": "randomk",
    "OneBit()": "onebit",
    "Dithering(4)": "dithering",
}
# Links in Mb/s; the model and the batch of each process.
_CASES: dict[str, tuple[tuple[int, str, int], ...]] = {
    "smoke": ((1000, "tiny", 2),),
    "quick": ((100, "resnet18", 16),),
    "default": ((100, "resnet18", 16), (1000, "resnet18", 16), (1000, "mlp", 32)),
    "full": (
        (100, "resnet18", 16),
        (100, "mlp", 32),
        (1000, "resnet18", 16),
        (1000, "mlp", 32),
    ),
}


def _measure(context: Context, megabits_per_s: int, model: str, batch: int) -> list[Result]:
    programs = context.programs
    peer = str(programs.peers / "training_step.py")
    names = ("host0", "host1")
    with Network(names, programs.congestion_control) as network:
        for host in names:
            network.shape(host, megabits_per_s * 1_000_000)
        cluster = Cluster(network, names, names)

        def ours(name: str, manner: str, index: int) -> Contender:
            rank = talweg_python(programs, peer, manner)
            rank.environment.update({"OMP_NUM_THREADS": "1", **STEADY_HEAP})
            return hosts.talweg(programs, cluster, name, index, rank)

        own = partial(hosts.python_ranks, cluster, _NONE, [peer, "none"], STEADY_HEAP)
        contenders: list[tuple[str, Make]] = [(_NONE, own)]
        contenders += [
            (name, partial(ours, name, manner, index))
            for index, (name, manner) in enumerate(_OURS.items())
        ]
        setting = rate_text(megabits_per_s)
        return measure_steps(context, "compressed_steps", setting, contenders, [(model, batch)])


def run(context: Context) -> Section:
    section = Section(TITLE)
    results: list[Result] = []
    with noted(context, section):
        for case in _CASES[context.mode]:
            results += _measure(context, *case)
    _tell(section, results)
    return section


def _tell(section: Section, results: list[Result]) -> None:
    section.failed = any(result.failure for result in results)
    rows = []
    for result in results:
        setting, case, name = result.setting, result.case, result.contender
        if result.failure:
            rows.append([setting, case, name, "failed", "", ""])
            continue
        plain = find(results, setting, case, _PLAIN)
        of_plain = result.median_s / plain.median_s if plain else None
        rows.append(
            [
                setting,
                case,
                name,
                format_seconds(result.median_s),
                format_seconds(result.p99_s),
                "" if of_plain is None else f"{of_plain:.3f}",
            ]
        )
        section.data.setdefault(f"{setting}, {case}", {})[name] = {
            "step_s": result.median_s,
            "p99_s": result.p99_s,
            "of_plain": of_plain,
        }
    head = ["links", "model", "how", "step", "p99", f"of {_PLAIN}'s"]
    section.text = markdown_table(head, rows) + (
        "\nOne process on each of two hosts, which are network namespaces of this machine. Every host's\n"
        "link has that rate each way (`tc ... tbf`). One thread a process, SGD with momentum. Talweg has\n"
        "an aggregator on each host.\n"
    )
