# SPDX-License-Identifier: Apache-2.0
"""Reads what processes cost from /proc."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The line is "pid (name) state ppid ...". The name may have any characters.
            after_name = (entry / "stat").read_text().rpartition(")")[2]
            parents[int(entry.name)] = int(after_name.split()[1])
    return parents


def family(roots: Iterable[int]) -> list[int]:
    """Returns the live processes of `roots`, and all their descendants."""
    parents = _parents()
    found = {root for root in roots if root in parents}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grown = bool(more)
    return sorted(found)


def program(pid: int) -> str:
    """Returns the name of the file that the process runs; empty if the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


def cpu_s(pids: Iterable[int]) -> dict[int, float]:
    """Returns the user and system time of each process so far, over all its threads, in seconds."""
    spent_s: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            # The id of the clock that clock_getcpuclockid(3) returns: ~pid shifted, for all
            # threads.
            spent_s[pid] = time.clock_gettime((~pid << 3) | 2)
    return spent_s


def memory_bytes(pids: Iterable[int]) -> dict[int, int]:
    """Returns the memory that each process holds, with its part of shared memory (PSS)."""
    held: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    held[pid] = int(line.split()[1]) * 1024
    return held


def interface_bytes(pid: int) -> dict[str, tuple[int, int]]:
    """Returns bytes received and sent by each interface of the process's network namespace."""
    counters: dict[str, tuple[int, int]] = {}
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        counters[name.strip()] = (int(fields[0]), int(fields[8]))
    return counters
