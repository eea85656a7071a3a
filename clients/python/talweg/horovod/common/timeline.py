# SPDX-License-Identifier: Apache-2.0
"""Writes rank 0's timeline: a Chrome trace of its operations, one event at a time."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives.collectives import JobHandle
from talweg._declaration import Op

# Horovod's names of calls, by Talweg's.
_KINDS = {
    "push_pull": "ALLREDUCE",
    "broadcast": "BROADCAST",
    "all_gather": "ALLGATHER",
    "all_to_all": "ALLTOALL",
    "reduce_scatter": "REDUCESCATTER",
}


def _row_of(handle: Handle) -> tuple[str, str] | None:
    """Returns the tensor's name and Horovod's name of the call. None for a round of Talweg's own.

    A tensor has the call's name in front, or belongs to an optimizer or a layer.
    """
    name = handle.name.removesuffix(".collective")
    called = name.partition(".")[0].removeprefix("grouped_").removeprefix("sparse_").upper()
    if called in _KINDS.values():
        return name, called
    if isinstance(handle, JobHandle):
        kind = _KINDS.get(handle.call, handle.call.upper())
        if name.startswith("talweg.") or " " in name:  # Calls without a name.
            name = f"{kind.lower()}.noname"
        return name, kind
    if name.startswith("talweg.") or (".used" in name and ".gradient." not in name):
        return None
    known = handle.client.tensors.known(name)
    is_broadcast = known is not None and known.declaration.op is Op.BROADCAST
    return name, _KINDS["broadcast" if is_broadcast else "push_pull"]


class Timeline:
    """Writes a client's rounds to a file. Chrome reads it at any time; after end() it is JSON.

    Each tensor is a process of the trace. Any thread may end a round.
    """

    def __init__(self, client: Client, path: str, mark_cycles: bool) -> None:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._file = open(path, "w", buffering=1)
        self._client = client
        self._marks_cycles = mark_cycles
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._cycle_end_ns = 0
        now_us, now_ns = time.time_ns() // 1000, time.monotonic_ns()
        self._file.write("[\n")
        told = {"start_time_since_epoch_in_micros": now_us - now_ns // 1000}
        self._write(self._of_process(0, told), "")
        client.watchers.append(self._on_result)
        _client.call_when_replaced(self._use)

    def _use(self, client: Client) -> None:
        """Goes on with the client that this process has when its agent was lost."""
        if not self._file.closed:
            self._client = client
            client.watchers.append(self._on_result)

    def end(self) -> None:
        """Completes and closes the file."""
        if self._on_result in self._client.watchers:
            self._client.watchers.remove(self._on_result)
        with self._lock:
            self._file.write("\n]\n")
            self._file.close()

    def _on_result(self, handle: Handle) -> None:
        end_ns = time.monotonic_ns()
        row = _row_of(handle)
        with self._lock:
            if row is not None and not self._file.closed:
                self._add(*row, handle.begin_ns, end_ns)

    def _add(self, name: str, kind: str, begin_ns: int, end_ns: int) -> None:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers) + 1
            self._write(self._of_process(number, {"name": name}))
        at_us = begin_ns // 1000
        if self._marks_cycles and begin_ns >= self._cycle_end_ns:
            self._write(self._mark("CYCLE_START", 0, at_us))
        self._cycle_end_ns = end_ns
        self._write(self._mark(f"NEGOTIATE_{kind}", number, at_us))
        took_us = end_ns // 1000 - at_us
        self._write({"name": kind, "ph": "X", "pid": number, "ts": at_us, "dur": took_us})

    @staticmethod
    def _of_process(number: int, told: dict[str, Any]) -> dict[str, Any]:
        return {"name": "process_name", "ph": "M", "pid": number, "args": told}

    @staticmethod
    def _mark(name: str, number: int, at_us: int) -> dict[str, Any]:
        return {"name": name, "ph": "i", "s": "p", "pid": number, "tid": 0, "ts": at_us}

    def _write(self, event: dict[str, Any], before: str = ",\n") -> None:
        self._file.write(before + json.dumps(event))
