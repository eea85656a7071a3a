# SPDX-License-Identifier: Apache-2.0
"""Measures TensorFlow's training steps on two hosts, beside its own strategy."""

from __future__ import annotations

from functools import partial

from netns import Network

from harness import hosts
from harness.contender import Command, Contender
from harness.hosts import Cluster
from harness.measure import Result
from harness.scenario import Context, Make, Section, noted
from harness.scenarios.tensorflow_step import (
    CASES,
    HOW,
    KERNEL,
    MIRRORED,
    NONE,
    PYTHON,
    QUIET,
    tell,
    tensorflow_python,
)
from harness.scenarios.training_step import measure_steps

TITLE = "A training step of TensorFlow on two hosts"
_SETTING = "2 hosts"


def _measure(context: Context) -> list[Result]:
    programs = context.programs
    peer = str(programs.peers / "tensorflow_step.py")
    names = ("host0", "host1")
    with Network(names, programs.congestion_control) as network:
        cluster = Cluster(network, names, names)

        def own(name: str, manner: str) -> Contender:
            return hosts.python_ranks(cluster, name, [peer, manner], QUIET, tensorflow_python())

        def ours(name: str, manner: str) -> Contender:
            variables = {
                "PYTHONPATH": str(programs.python),
                "TALWEG_LIBRARY": str(programs.library),
                "OMP_NUM_THREADS": "1",
                **QUIET,
            }
            rank = Command((tensorflow_python(), peer, manner), variables)
            # The scheduler of the second job has a port of its own.
            index = int(name == PYTHON)
            return hosts.talweg(programs, cluster, name, index, rank=rank)

        contenders: list[tuple[str, Make]] = [
            (NONE, partial(own, NONE, "none")),
            (MIRRORED, partial(own, MIRRORED, "mirrored")),
            (KERNEL, partial(ours, KERNEL, "kernel")),
            (PYTHON, partial(ours, PYTHON, "python")),
        ]
        cases = CASES[context.mode]
        return measure_steps(context, "tensorflow_step_hosts", _SETTING, contenders, cases)


def run(context: Context) -> Section:
    section = Section(TITLE)
    with noted(context, section):
        tell(section, _measure(context), _SETTING)
        section.text += HOW + (
            "One process runs on each of two hosts, which are network namespaces of this machine;\n"
            "their links are not shaped. Talweg has an aggregator on each host.\n"
        )
    return section
