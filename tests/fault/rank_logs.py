# SPDX-License-Identifier: Apache-2.0
"""What ranks say in tests that kill: each of their processes writes lines to DIRECTORY/PID."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_STEPS = 10


def said(directory: Path) -> dict[int, list[str]]:
    """By pid."""
    return {
        int(path.name): path.read_text().splitlines()
        for path in directory.iterdir()
        if path.name.isdigit()
    }


def going_on(directory: Path, ranks: int) -> Callable[[], bool]:
    """Whether so many processes have ended ten steps more since this call."""
    begin = {pid: len(lines) for pid, lines in said(directory).items()}

    def has_gone_on(pid: int, lines: list[str]) -> bool:
        more = lines[begin.get(pid, 0) :]
        return sum(line.startswith("step") for line in more) >= _STEPS

    return lambda: sum(has_gone_on(*each) for each in said(directory).items()) >= ranks
