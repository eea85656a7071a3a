# SPDX-License-Identifier: Apache-2.0
"""The facts about this machine's GPUs that scenarios need."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

_TIMEOUT_S = 120.0


@functools.cache
def count_gpus() -> int:
    """Returns how many GPUs torch can use. Another process asks, because that makes a context."""
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
    """Returns the variables that have ranks compute on GPUs; none in smoke mode."""
    return {} if mode == "smoke" else {"TALWEG_BENCH_DEVICE": "cuda"}
