# SPDX-License-Identifier: Apache-2.0
"""monitored_barrier() for groups of Talweg. torch.distributed has it for Gloo alone.

Each rank sends the number of its call to the group's first rank, and waits for an answer. A rank
that comes after the others have given up gets no answer, because its message has the number of a
call that is over.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from talweg.errors import InvalidArgument, Timeout

if TYPE_CHECKING:
    from talweg.torch._process_group import ProcessGroup

# A tag that no message of a program has.
_TAG = -1
# An answer has the call's number, then 1 for each rank of the group that is missing, else 0.


@dataclass
class _Calls:
    """The calls of one group."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    # Open receives. The first rank has one for each other rank; it stays open if that rank does not
    # come. The other ranks have one for the first rank's answer.
    open: dict[int, tuple[Any, torch.Tensor]] = field(default_factory=dict)


def _received(group: ProcessGroup, calls: _Calls, source: int, size: int, end: float) -> Any:
    """Returns the next message from that rank as numbers; None if none comes before `end`."""
    if source not in calls.open:
        tensor = torch.zeros(size, dtype=torch.int64, device="cpu")
        calls.open[source] = group.recv([tensor], source, _TAG), tensor
    work, tensor = calls.open[source]
    try:
        work.wait(timedelta(seconds=max(end - time.monotonic(), 1e-3)))
    except Timeout:
        return None
    del calls.open[source]
    return tensor.tolist()


def _names(group: ProcessGroup, places: list[int]) -> str:
    ranks = [str(dist.get_global_rank(group, place)) for place in places]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Returns when all ranks of the group have called it, as torch.distributed.monitored_barrier().

    The default of `timeout` is the group's. If a rank has not called by then, the ranks that have
    called raise Timeout, which is also a RuntimeError. It names the first missing rank, or all of
    them with `wait_all_ranks`. A rank that calls later raises Timeout after its own time.

    For a group of another backend it calls torch's function.
    """
    from talweg.torch._process_group import ProcessGroup  # It needs torch.distributed.

    group = dist.group.WORLD if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    if not isinstance(group, ProcessGroup):
        dist.monitored_barrier(group, timeout, wait_all_ranks)
        return
    timeout_s = (group._timeout if timeout is None else timeout).total_seconds()
    if timeout_s <= 0:
        raise InvalidArgument(f"monitored_barrier(timeout={timeout}): give a time above 0")
    calls: _Calls = group.__dict__.setdefault("_monitored_calls", _Calls())
    with calls.lock:
        calls.count += 1
        end = time.monotonic() + min(timeout_s, 1e8)
        if group.rank() == 0:
            missing = _gather(group, calls, end, wait_all_ranks)
        else:
            missing = _report(group, calls, end)
    if missing:
        raise Timeout(
            f"monitored_barrier: {_names(group, missing)} did not come within {timeout_s:g} s: see "
            "there what it does instead, and what `talweg status` says"
        )


def _gather(group: ProcessGroup, calls: _Calls, end: float, waits_for_all: bool) -> list[int]:
    """Waits for all others, tells those that have come, and returns who has not."""
    size = group.size()
    missing: list[int] = []
    come: list[int] = []
    for place in range(1, size):
        while True:
            told = _received(group, calls, place, 1, end)
            if told is None:
                missing.append(place)
                break
            if told[0] >= calls.count:
                come.append(place)
                break
            # The message belongs to an earlier call, which is over.
    if not waits_for_all:
        missing = missing[:1]
    word = torch.zeros(1 + size, dtype=torch.int64, device="cpu")
    word[0] = calls.count
    word[[1 + place for place in missing]] = 1
    for work in [group.send([word], place, _TAG) for place in come]:
        with contextlib.suppress(Timeout):  # The rank has given up. Its next call takes the answer.
            work.wait(timedelta(seconds=max(end - time.monotonic(), 1.0)))
    return missing


def _report(group: ProcessGroup, calls: _Calls, end: float) -> list[int]:
    """Tells the first rank that this rank is there. Returns the missing ranks that it names."""
    group.send([torch.tensor([calls.count], device="cpu")], 0, _TAG)
    while True:
        told = _received(group, calls, 0, 1 + group.size(), end)
        if told is None:
            return [0]
        if told[0] >= calls.count:
            return [place for place, is_missing in enumerate(told[1:]) if is_missing]
