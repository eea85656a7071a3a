# SPDX-License-Identifier: Apache-2.0
"""Runs programs that are written with Google Benchmark, and takes their medians."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TIMEOUT_S = 1800.0


class BenchmarkFailed(Exception):
    """The program has failed. The text has its output."""


def run(program: Path, repetitions: int, min_time_s: float, *flags: str) -> dict[str, Any]:
    """Runs the program and returns its JSON document.

    Repetitions of all benchmarks run in random order.
    """
    line = [
        str(program),
        f"--benchmark_min_time={min_time_s}",
        f"--benchmark_repetitions={repetitions}",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_report_aggregates_only=false",
        "--benchmark_format=json",
        *flags,
    ]
    return _document(line)


def names(program: Path) -> list[str]:
    """Returns the names of all benchmarks in the program."""
    line = [str(program), "--benchmark_list_tests"]
    return _output(line).split()


def medians(document: dict[str, Any], figure: str = "bytes_per_second") -> dict[str, float]:
    """Returns the figure of each benchmark that has not failed, by name.

    The name of "BM_Copy/65536" is "Copy/65536".
    """
    there = [each for each in document["benchmarks"] if figure in each]
    found = {
        each["run_name"]: each[figure]
        for each in there
        if each["run_type"] == "aggregate" and each["aggregate_name"] == "median"
    }
    # With a single repetition there are no aggregates.
    found = found or {each["run_name"]: each[figure] for each in there}
    return {
        name.removeprefix("BM_").removesuffix("/manual_time"): value
        for name, value in found.items()
    }


def failures(document: dict[str, Any]) -> dict[str, str]:
    """Returns why benchmarks have failed, by name."""
    return {
        each["run_name"].removeprefix("BM_").removesuffix("/manual_time"): each["error_message"]
        for each in document["benchmarks"]
        if each.get("error_occurred")
    }


def _document(line: Sequence[str]) -> dict[str, Any]:
    text = _output(line)
    try:
        document: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise BenchmarkFailed(f"{line[0]} wrote no JSON: {error}") from error
    return document


def _output(line: Sequence[str]) -> str:
    try:
        result = subprocess.run(
            line, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchmarkFailed(str(error)) from error
    if result.returncode != 0:
        raise BenchmarkFailed(result.stderr.strip() or f"{line[0]} ended with {result.returncode}")
    return result.stdout
