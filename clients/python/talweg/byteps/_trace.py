# SPDX-License-Identifier: Apache-2.0
"""BYTEPS_TRACE_ON: writes BYTEPS_TRACE_DIR/LOCAL_RANK/comm.json, as BytePS does, and has the node's
agent write its timeline beside it.

A rank hands all slices of a round to the agent at once, so the events of a tensor's keys have equal
times. The agent's own timeline shows what it does with them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from talweg import errors
from talweg._client import Client, Declared, Handle
from talweg._compat import timeline
from talweg.byteps._environment import TABLE
from talweg.byteps._keys import Keys

# The largest value of the agent's option.
_AGENT_ROUNDS_MAX = 1_000_000


def prepare_agent(node: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make the node's agent write its timeline of the traced rounds.

    Makes the directory. Raises InvalidArgument if that fails.
    """
    if not TABLE.switch(environment, "BYTEPS_TRACE_ON"):
        return {}
    directory = os.path.abspath(TABLE.value(environment, "BYTEPS_TRACE_DIR"))
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise errors.InvalidArgument(
            f"BYTEPS_TRACE_DIR is '{directory}', which cannot be made: {error.strerror}; name a "
            "directory that can be written to, or unset BYTEPS_TRACE_ON"
        ) from None
    rounds = min(TABLE.number(environment, "BYTEPS_TRACE_END_STEP"), _AGENT_ROUNDS_MAX)
    return {
        "TALWEG_TRACE_PATH": os.path.join(directory, f"agent_{node}.json"),
        "TALWEG_TRACE_ROUNDS": str(rounds),
    }


@dataclass
class _Told:
    """What a file tells. It goes on in the next job that this process joins by resume()."""

    keys: Keys
    counts: dict[str, int] = field(default_factory=dict)  # Rounds, by tensor.
    events: list[dict[str, Any]] = field(default_factory=list)
    written: int = -1  # How many events the file has; -1 before it is there.


_told: dict[str, _Told] = {}  # By path.


class Trace:
    """One client's comm.json.

    It is written when all tensors that are traced have passed their last traced round, and when the
    client is closed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        client: Client,
        slice_bytes: int,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._first = TABLE.number(environment, "BYTEPS_TRACE_START_STEP")
        self._last = TABLE.number(environment, "BYTEPS_TRACE_END_STEP")
        if self._last <= self._first:
            raise errors.InvalidArgument(
                f"BYTEPS_TRACE_END_STEP is {self._last}; it must be larger than "
                f"BYTEPS_TRACE_START_STEP, which is {self._first}"
            )
        directory = TABLE.value(environment, "BYTEPS_TRACE_DIR")
        self._path = os.path.join(directory, str(client.local_rank), "comm.json")
        self._now_ns = now_ns
        self._told = _told.setdefault(os.path.abspath(self._path), _Told(Keys(slice_bytes)))
        self._keys = self._told.keys
        self._pushed: dict[
            str, tuple[int, range]
        ] = {}  # When a name's open round was, and its keys.
        client.push_watchers.append(self._on_push)
        client.watchers.append(self._on_result)
        client.call_when_closed(self._write)

    def _on_push(self, declared: Declared, _: int) -> None:
        self._keys.add(declared.name)
        keys = self._keys.of(declared.name, declared.declaration)
        self._pushed[declared.name] = (self._now_ns(), keys)

    def _on_result(self, handle: Handle) -> None:
        name = handle.name
        counts = self._told.counts
        count = counts[name] = counts.get(name, 0) + 1
        # TALWEG_TENSORFLOW_OPS=kernel pushes without push_watchers: then keys are not known.
        begin_ns, keys = self._pushed.pop(name, (handle.begin_ns, range(0)))
        if not self._first <= count <= self._last:
            return
        end_ns = self._now_ns()
        row = f"Comm.{name}"
        self._add(row, row, "total", begin_ns, end_ns)
        for key in keys:
            self._add(f"{row}.PUSH", row, str(key), begin_ns, handle.begin_ns)
            self._add(f"{row}.PULL", row, str(key), handle.begin_ns, end_ns)
        if count == self._last and not any(
            self._first <= each < self._last for each in counts.values()
        ):
            self._write()

    def _add(self, name: str, row: str, thread: str, begin_ns: int, end_ns: int) -> None:
        begin_us = begin_ns // 1000
        event = {"ph": "X", "cat": "Comm", "name": name, "pid": row, "tid": thread}
        self._told.events.append({**event, "ts": begin_us, "dur": end_ns // 1000 - begin_us})

    def _write(self) -> None:
        told = self._told
        if told.written == len(told.events):
            return
        told.written = len(told.events)
        timeline.write(self._path, {"traceEvents": told.events, "displayTimeUnit": "ms"})
        print(f"byteps: the trace is in {self._path}", flush=True)
