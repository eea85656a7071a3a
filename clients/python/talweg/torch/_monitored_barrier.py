# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.monitored_barrier(), which torch has for Gloo alone.

Each rank tells the group's first rank that it is there, with the number of its call, and waits for
an answer from that rank. A rank that comes too late, when the others have given up, gets no answer:
its message has the number of a call that is over.
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

# No program's own messages have it.
_TAG = -1
# A message: the call's number, and then for each rank of the group whether it is missing.


@dataclass
class _Calls:
    """One group's."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    # At the first rank: what it waits for from others, which stays open where they have not come. At
    # the others: its word.
    open: dict[int, tuple[Any, torch.Tensor]] = field(default_factory=dict)


def _received(group: ProcessGroup, calls: _Calls, source: int, size: int, end: float) -> Any:
    """The next message of that rank as numbers; None: none has come when `end` has passed."""
    if source not in calls.open:
        tensor = torch.zeros(size, dtype=torch.int64)
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
    """Returns when all ranks of the group have called it; as torch.distributed.monitored_barrier().

    If some have not within `timeout` (the group's), the group's first rank raises Timeout, which is
    a RuntimeError too, and names the first of them, or all with `wait_all_ranks`. So do those that
    have come. Those that come later raise Timeout after theirs.

    A group of another backend is handed to torch's.
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
            # It has come too late to a call that is over.
    if not waits_for_all:
        missing = missing[:1]
    word = torch.zeros(1 + size, dtype=torch.int64)
    word[0] = calls.count
    word[[1 + place for place in missing]] = 1
    for work in [group.send([word], place, _TAG) for place in come]:
        with contextlib.suppress(Timeout):  # It has given up, and takes it in its next call.
            work.wait(timedelta(seconds=max(end - time.monotonic(), 1.0)))
    return missing


def _report(group: ProcessGroup, calls: _Calls, end: float) -> list[int]:
    """Tells the first rank, and returns who is missing by its word."""
    group.send([torch.tensor([calls.count])], 0, _TAG)
    while True:
        told = _received(group, calls, 0, 1 + group.size(), end)
        if told is None:
            return [0]
        if told[0] >= calls.count:
            return [place for place, is_missing in enumerate(told[1:]) if is_missing]
