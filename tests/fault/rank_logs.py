# SPDX-License-Identifier: Apache-2.0
"""Reads the lines of ranks in tests that kill. Each process writes to DIRECTORY/PID."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_STEPS = 10


def said(directory: Path) -> dict[int, list[str]]:
    """Returns the lines of each process, by PID."""
    return {
        int(path.name): path.read_text().splitlines()
        for path in directory.iterdir()
        if path.name.isdigit()
    }


def going_on(directory: Path, ranks: int) -> Callable[[], bool]:
    """Returns a function. It tells whether so many processes have ended ten steps since now."""
    begin = {pid: len(lines) for pid, lines in said(directory).items()}

    def has_gone_on(pid: int, lines: list[str]) -> bool:
        more = lines[begin.get(pid, 0) :]
        return sum(line.startswith("step") for line in more) >= _STEPS

    return lambda: sum(has_gone_on(*each) for each in said(directory).items()) >= ranks
