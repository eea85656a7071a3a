# SPDX-License-Identifier: Apache-2.0
"""Describes the machine and the programs of a result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def output_of(*line: str) -> str:
    """Returns the first line that a program prints; empty if there is no such program."""
    try:
        result = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (result.stdout.strip().splitlines() or [""])[0]


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def _version(package: str) -> str:
    """Returns the version of a Python package, without importing it; empty if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def facts(root: Path) -> dict[str, Any]:
    changed = output_of("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    commit = output_of("git", "-C", str(root), "rev-parse", "--short=12", "HEAD")
    flags = _field("/proc/cpuinfo", "flags").split()
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": [name for name in ("avx2", "avx512f", "avx512_bf16") if name in flags],
        "memory_bytes": int(_field("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        "kernel": platform.release(),
        "commit": commit + (" with changes" if changed else ""),
        "congestion_control_of_host": congestion_control(),
        "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": _version("torch"),
        "openmpi": output_of("mpirun", "--version"),
    }
