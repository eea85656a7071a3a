# SPDX-License-Identifier: Apache-2.0
"""Measures what communication adds to JAX's training steps of two processes on one node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from harness.contender import Contender
from harness.contenders import Missing, Programs, python_ranks
from harness.measure import Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find
from harness.scenarios.training_step import (
    STEADY_HEAP,
    added_bar,
    cpu_s_per_step,
    measure_steps,
    of_other_interval,
    step_row,
    talweg_ranks,
)

TITLE = "A training step of JAX"
_SETTING = "2 JAX processes"
_RANKS = 2
_NONE, _DISTRIBUTED, _TALWEG = "no communication", "jax.distributed over Gloo", "talweg.jax"
_OF_DISTRIBUTED = 1 / 2
_ENVIRONMENT = Path(".cache") / "venv-jax" / "bin" / "python"

# The model and the batch of each process.
_CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("tiny", 2),),
    "quick": (("mlp", 32),),
    "default": (("mlp", 32), ("narrow", 32)),
    "full": (("mlp", 8), ("mlp", 32), ("mlp", 128), ("narrow", 32)),
}


def jax_python(peers: Path) -> str:
    """Returns the Python that has jax. Raises Missing if bazel/prepare has not made it."""
    for root in (peers, *peers.parents, *peers.resolve().parents):
        python = root / _ENVIRONMENT
        if python.exists():
            return str(python)
    raise Missing("there is no .cache/venv-jax; bazel/prepare --for=test makes it")


def _peer(programs: Programs, name: str, manner: str, variables: Mapping[str, str]) -> Contender:
    network = programs.in_own_network()
    line = [str(programs.peers / "jax_training_step.py"), manner]
    python = jax_python(programs.peers)
    return python_ranks(name, _RANKS, network, line, dict(variables), python)


def _talweg(programs: Programs, name: str, variables: Mapping[str, str]) -> Contender:
    python = jax_python(programs.peers)
    return talweg_ranks(
        programs,
        "jax_training_step.py",
        "talweg",
        name,
        programs.in_own_network(),
        variables,
        python,
    )


def run(context: Context) -> Section:
    programs = context.programs
    # The processes share all CPUs, so each computes with one thread.
    variables = {**STEADY_HEAP, "NPROC": "1"}
    makers: list[tuple[str, Make]] = [
        (_NONE, partial(_peer, programs, _NONE, "none", variables)),
        (_DISTRIBUTED, partial(_peer, programs, _DISTRIBUTED, "distributed", variables)),
        (_TALWEG, partial(_talweg, programs, _TALWEG, variables)),
    ]
    section = Section(TITLE)
    results = measure_steps(context, "jax_training_step", _SETTING, makers, _CASES[context.mode])
    section.failed = any(result.failure for result in results)
    rows = []
    for result in results:
        base = find(results, _SETTING, result.case, _NONE)
        other = find(results, _SETTING, result.case, _DISTRIBUTED)
        rows.append(step_row(result, base, other))
        section.data.setdefault(result.case, {})[result.contender] = {
            "step_s": result.median_s,
            "p99_s": result.p99_s,
            "added_s": result.median_s - base.median_s if base else None,
            "added_of_distributed_interval": of_other_interval(result, base, other),
            "cpu_s_per_step": cpu_s_per_step(result),
            "memory_bytes": result.memory_bytes,
        }
    section.bars = _bars(results)
    head = ["model", "how", "step", "p99", "added", "of jax.distributed's", "CPU a step"]
    section.text = markdown_table(head, rows) + (
        "\nOne thread a process, optax's SGD with momentum, one `jit` for the whole step. `mlp` has 24.9 M\n"
        "parameters, `narrow` 1.3 M in 82 arrays. `jax.distributed` shards the batch over two processes and\n"
        "replicates the model; XLA sums over Gloo. All jobs take turns on the same machine. `added` is the\n"
        "median step less that of two processes that do not communicate.\n"
    )
    return section


def _bars(results: list[Result]) -> list[Bar]:
    text = "talweg.jax: added time over what jax.distributed with Gloo adds"
    return [
        added_bar(results, _SETTING, case, (_NONE, _DISTRIBUTED, _TALWEG), _OF_DISTRIBUTED, text)
        for case in dict.fromkeys(result.case for result in results)
    ]
