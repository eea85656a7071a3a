# SPDX-License-Identifier: Apache-2.0
"""This machine's GPUs, as far as scenarios care."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

_TIMEOUT_S = 120.0


@functools.cache
def count_gpus() -> int:
    """How many torch can use. A process of its own asks, because the answer takes a context."""
    if importlib.util.find_spec("torch") is None:
        return 0
    script = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return int(done.stdout) if done.returncode == 0 else 0


def device_variables(mode: str) -> dict[str, str]:
    """Tells ranks where to compute: on GPUs, except in a run that only shows that everything works."""
    return {} if mode == "smoke" else {"TALWEG_BENCH_DEVICE": "cuda"}
