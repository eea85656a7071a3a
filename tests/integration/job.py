# SPDX-License-Identifier: Apache-2.0
"""Runs a program as a job with `talweg run`, and always cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_forks import TorchForks

_RUNFILES = Path(os.environ["RUNFILES_DIR"]) / "talweg"
TOOL = str(_RUNFILES / "clients" / "cli" / "talweg")
PROGRAMS = _RUNFILES / "tests" / "integration" / "programs"
# It ends a job that hangs, and is far longer than any job here takes.
TIMEOUT_S = 240.0


def command(
    program: str,
    arguments: Sequence[str] = (),
    nodes: int = 1,
    ranks: int | Sequence[int] = 2,
    aggregators: int | None = None,
    options: Sequence[str] = (),
    forks: TorchForks | None = None,
) -> list[str]:
    """Returns a job's command line. `ranks` may be a list by node. `forks` spare ranks imports."""
    per_node = str(ranks) if isinstance(ranks, int) else ",".join(str(count) for count in ranks)
    line = [TOOL, "run", f"--nodes={nodes}", f"--ranks-per-node={per_node}"]
    if aggregators is not None:
        line += [f"--aggregators={aggregators}", "--force-distributed"]
    prefix = forks.prefix if forks else []
    line += [*options, "--", sys.executable, "-P", *prefix, str(PROGRAMS / program), *arguments]
    return line


def run(
    line: Sequence[str],
    env: dict[str, str] | None = None,
    check: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Runs a command in its own process group. Returns its output. Raises if it fails or hangs."""
    environment = dict(os.environ, PYTHONPATH=os.environ.get("PYTHONPATH", ""), **(env or {}))
    environment["PYTHONPATH"] += f":{_RUNFILES / 'tests' / 'integration'}"
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        raise AssertionError(
            f"no end after {timeout_s} s: {' '.join(line)}\n{output[-8000:]}"
        ) from None
    if check and process.returncode != 0:
        raise AssertionError(f"exit {process.returncode}: {' '.join(line)}\n{output[-8000:]}")
    return output
