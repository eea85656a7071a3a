# SPDX-License-Identifier: Apache-2.0
"""Measures the first step of a large model, in which memory is allocated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from harness.contenders import talweg_python
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section

TITLE = "The first step"
_NODES, _RANKS = 2, 2
_STEPS = 6
_TIMEOUT_S = 600
# Each node has its ranks' contributions, and one region for what it sends and for the result. The
# aggregators have a slot for each node, and the sum.
_BUFFERS = _NODES * (_RANKS + 1) + _NODES + 1
# Each rank has its gradients and its averages.
_ARRAYS = 2 * _NODES * _RANKS
_TIMES_MAX = 2
_MIB = 1 << 20

# The bytes of the model, and the number of its tensors.
_CASES: dict[str, tuple[tuple[int, int], ...]] = {
    "smoke": ((4 * _MIB, 2),),
    "quick": ((100 * _MIB, 25),),
    "default": ((400 * _MIB, 1), (400 * _MIB, 100)),
    "full": ((400 * _MIB, 1), (400 * _MIB, 100), (400 * _MIB, 1000)),
}


def _steps(context: Context, nbytes: int, tensors: int) -> list[float]:
    programs = context.programs
    program = str(programs.peers / "first_step.py")
    rank = talweg_python(programs, program, str(nbytes), str(tensors), str(_STEPS))
    shape = [f"--nodes={_NODES}", f"--ranks-per-node={_RANKS}", "--no-prefix"]
    done = subprocess.run(
        [str(programs.tool), "run", *shape, "--", *rank.line],
        env={**os.environ, **rank.environment, "TALWEG_LOG_LEVEL": "error"},
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def _kernel_seconds(context: Context, nbytes: int) -> float:
    """Returns the time in which all CPUs get `nbytes` of memory from the kernel at once."""
    cpus = len(os.sched_getaffinity(0))
    line = [sys.executable, str(context.programs.peers / "populate.py"), str(nbytes // cpus)]
    pipe = subprocess.PIPE
    asking = [subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True) for _ in range(cpus)]
    try:
        for process in asking:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return max(float(process.communicate(timeout=_TIMEOUT_S)[0]) for process in asking)
    finally:
        for process in asking:
            process.kill()
            process.wait()


def _rows(context: Context, section: Section, cases: Sequence[tuple[int, int]]) -> list[list[str]]:
    rows = []
    for nbytes, tensors in cases:
        case = f"{nbytes // _MIB} MiB in {tensors}"
        context.progress(f"{case}: {_STEPS} steps")
        try:
            # The host of a virtual machine takes long to give memory that was not used for a while:
            # at most a fifth of the kernel's speed. So all of the memory is used before.
            _kernel_seconds(context, (_BUFFERS + _ARRAYS) * nbytes)
            first, *others = _steps(context, nbytes, tensors)
            kernel = _kernel_seconds(context, _BUFFERS * nbytes)
        except (subprocess.SubprocessError, ValueError) as failure:
            context.notes.append(f"{TITLE}, {case}: {failure}")
            section.failed = True
            continue
        later = median(others)
        section.data[case] = {"first": first, "others": others, "kernel": kernel}
        rows.append([case, f"{first:.2f} s", f"{later:.2f} s", f"{kernel:.2f} s"])
        text = f"{case}: the first step, less what the kernel takes, over a later one"
        times = (first - kernel) / later
        section.bars.append(Bar(text, f"<= {_TIMES_MAX}", times, times <= _TIMES_MAX))
    return rows


def run(context: Context) -> Section:
    section = Section(TITLE)
    rows = _rows(context, section, _CASES[context.mode])
    section.text = (
        f"{_NODES} nodes of {_RANKS} ranks on one machine. The first step needs {_BUFFERS} times the "
        "model's bytes of new memory. The last column is the time in which the kernel gives as much "
        "to programs that do nothing else.\n\n"
    )
    section.text += markdown_table(["model", "first step", "a later one", "kernel"], rows)
    return section
