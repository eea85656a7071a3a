# SPDX-License-Identifier: Apache-2.0
"""Writes files of traces, and measures how fast a rank pushes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from talweg._client import Client, Handle


def write(path: str, content: Any) -> None:
    """Writes `content` as JSON. The file appears whole or not at all."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w") as file:
        json.dump(content, file)
    os.replace(partial, path)


class Speed:
    """Measures a client's pushed bytes per second: at the end of a round, every 10 s at most."""

    _PERIOD_NS = 10_000_000_000
    _SAMPLES_MAX = 1024

    def __init__(self, client: Client, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._client = client
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._samples: list[tuple[int, float]] = []
        self._begin = (now_ns(), client.pushed_bytes)
        client.watchers.append(self._on_round)

    def _on_round(self, _: Handle) -> None:
        now_ns = self._now_ns()
        begin_ns, begin_bytes = self._begin
        if now_ns - begin_ns < self._PERIOD_NS:
            return
        with self._lock:
            pushed = self._client.pushed_bytes
            self._begin = (now_ns, pushed)
            speed = (pushed - begin_bytes) / 1e6 / ((now_ns - begin_ns) / 1e9)
            if len(self._samples) < self._SAMPLES_MAX:
                self._samples.append((time.time_ns() // 1_000_000, speed))

    def take(self) -> tuple[int, float] | None:
        """Removes and returns the oldest sample: ms since 1970, and MB/s. None if there is none."""
        with self._lock:
            return self._samples.pop(0) if self._samples else None
