# SPDX-License-Identifier: Apache-2.0
"""Measures TensorFlow's training steps of two processes on one node, beside its own strategy."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from harness.contender import Command, Contender
from harness.contenders import Missing, Programs, python_ranks
from harness.figures import format_seconds
from harness.measure import Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find
from harness.scenarios.training_step import added_bar, measure_steps

TITLE = "A training step of TensorFlow"
_SETTING = "2 processes"
_RANKS = 2
NONE, MIRRORED, KERNEL, PYTHON = (
    "no communication",
    "MultiWorkerMirroredStrategy",
    "Talweg, kernel",
    "Talweg, Python functions",
)
_OF_MIRRORED = 1 / 2
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

HOW = (
    "\nOne thread an operation, SGD with momentum, in one `tf.function`. `mlp` has 24.9 M parameters,\n"
    "`layers` 82 tensors of 2.7 M parameters. All jobs take turns on the same machine. `added` is the\n"
    "median step less that of two processes that do not communicate.\n"
)

# The model and the batch of each process. `layers` has 82 small tensors.
CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("tiny", 2),),
    "quick": (("mlp", 32),),
    "default": (("mlp", 32), ("layers", 32)),
    "full": (("mlp", 8), ("mlp", 32), ("mlp", 128), ("layers", 32)),
}


def tensorflow_python() -> str:
    found = Path(__file__).resolve().parents[3] / ".cache" / "venv-tensorflow" / "bin" / "python"
    if not found.exists():
        raise Missing(f"there is no TensorFlow at {found}; bazel/prepare --for=test installs it")
    return str(found)


def _own(programs: Programs, name: str, manner: str) -> Contender:
    """Returns processes that the harness starts itself, with their number as an argument."""
    line = [str(programs.peers / "tensorflow_step.py"), manner]
    return python_ranks(
        name, _RANKS, programs.in_own_network(), line, dict(QUIET), tensorflow_python()
    )


def _talweg(programs: Programs, name: str, manner: str) -> Contender:
    run = [str(programs.tool), "run", "--nodes=1", f"--ranks-per-node={_RANKS}", "--"]
    rank = (tensorflow_python(), str(programs.peers / "tensorflow_step.py"), manner)
    environment = {"PYTHONPATH": str(programs.python), "TALWEG_LIBRARY": str(programs.library)}
    command = Command((*programs.in_own_network(), *run, *rank), {**environment, **QUIET})
    return Contender(name, _RANKS, [command])


def run(context: Context) -> Section:
    programs = context.programs
    contenders: list[tuple[str, Make]] = [
        (NONE, partial(_own, programs, NONE, "none")),
        (MIRRORED, partial(_own, programs, MIRRORED, "mirrored")),
        (KERNEL, partial(_talweg, programs, KERNEL, "kernel")),
        (PYTHON, partial(_talweg, programs, PYTHON, "python")),
    ]
    section = Section(TITLE)
    results = measure_steps(context, "tensorflow_step", _SETTING, contenders, CASES[context.mode])
    tell(section, results, _SETTING)
    section.text += HOW
    return section


def tell(section: Section, results: list[Result], setting: str) -> None:
    """Adds the table, the data and the bars to the section."""
    section.failed = any(result.failure for result in results)
    rows = []
    for result in results:
        base = find(results, setting, result.case, NONE)
        added_s = result.median_s - base.median_s if base and not result.failure else None
        shown = "" if added_s is None or result is base else f"{added_s * 1e3:+.3g} ms"
        step = "failed" if result.failure else format_seconds(result.median_s)
        p99 = "" if result.failure else format_seconds(result.p99_s)
        rows.append([result.case, result.contender, step, p99, shown])
        section.data.setdefault(result.case, {})[result.contender] = {
            "step_s": result.median_s,
            "p99_s": result.p99_s,
            "added_s": added_s,
        }
    section.bars = _bars(results, setting)
    section.text = markdown_table(["model", "how", "step", "p99", "added"], rows)


def _bars(results: list[Result], setting: str) -> list[Bar]:
    text = "kernel: added time over what MultiWorkerMirroredStrategy adds"
    return [
        added_bar(results, setting, case, (NONE, MIRRORED, KERNEL), _OF_MIRRORED, text)
        for case in dict.fromkeys(result.case for result in results)
    ]
