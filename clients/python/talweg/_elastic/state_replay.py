# SPDX-License-Identifier: Apache-2.0
"""Replays the steps of a talweg.State with an `apply` hook: replay.Replay.

The program gives its State the results of a step, and the State calls the hook with them. The
joiner's State calls its own hook with the same results, and with the numbers and texts that the
survivor's State had then.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from talweg._collectives import objects
from talweg._elastic import stripes
from talweg._elastic.replay import Call, Snapshot

# Values of these types travel with each call. They are small, a hook may read them, and the program
# may change them.
_SMALL = (int, float, complex, str, type(None), np.generic)


def small_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers and texts among `values`."""
    return {name: value for name, value in values.items() if isinstance(value, _SMALL)}


class Recorder:
    """The replay.Recording of one State."""

    def __init__(
        self,
        place: int,
        count: int,
        before: Callable[[], None],
        on_close: Callable[[Recorder], None],
    ) -> None:
        self.problem: str | None = None
        self._before = before
        self._place, self._count = place, count
        self._calls: list[Call] = []
        self._on_close = on_close

    def take(self) -> list[Call]:
        calls, self._calls = self._calls, []
        return calls

    def close(self) -> None:
        self._on_close(self)
        self._calls = []

    def record(self, given: Any, values: dict[str, Any]) -> None:
        """Records a call of the hook, which comes next, with `given`. The hook reads `values`."""
        self._before()
        if self.problem is not None:
            return
        try:
            stream, *buffers = objects.pickled(given)
        except Exception as failure:  # A user's class may raise any error.
            self.problem = f"what apply() is given cannot be pickled: {failure}"
            return
        large = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        sizes = [each.size for each in large]
        begin, end = stripes.stripe_of(sum(sizes), self._place, self._count)
        header = b""
        if self._place == 0:
            header = pickle.dumps((bytes(stream), sizes, small_values(values)))
        self._calls.append(Call(header, sum(sizes), stripes.copy_out(large, begin, end)))


def is_of_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, getattr(jax, "Array", ()))


def _are_arrays(value: Any) -> bool:
    """Whether it is an array, or consists of arrays and nothing else."""
    if isinstance(value, dict):
        return bool(value) and all(map(_are_arrays, value.values()))
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_are_arrays, value))
    return isinstance(value, np.ndarray) or is_of_jax(value)


class StateReplay:
    """The replay.Replay of one State. Values that consist of arrays are replayed, and digests tell
    if that was not enough.

    All other values travel twice: with the snapshot, for the hook, and with the rest.
    """

    def __init__(
        self,
        values: dict[str, Any],
        captured: Callable[[Any], Any],
        take: Callable[[dict[str, Any], Sequence[str]], None],
        call: Callable[..., Any],
        recorders: list[Recorder],
    ) -> None:
        """`values` are the State's own. `captured` returns a value in the form that travels. `take`
        takes values over, except those of some names. `call` calls the hook. `recorders` are those
        that record now.
        """
        self._values = values
        self._captured = captured
        self._take = take
        self._call = call
        self._recorders = recorders

    def problem(self) -> str | None:
        return None

    def _names_replayed(self) -> list[str]:
        return [name for name, value in self._values.items() if _are_arrays(value)]

    def snapshot(self) -> Snapshot:
        replayed = self._names_replayed()
        values = {name: self._captured(value) for name, value in self._values.items()}
        others = {name: values.pop(name) for name in list(values) if name not in replayed}
        stream, *steady = objects.pickled(values)
        stream_of_others, *more = objects.pickled(others)
        header = pickle.dumps((bytes(stream), bytes(stream_of_others), len(steady)))
        buffers = [np.frombuffer(buffer, np.uint8) for buffer in (*steady, *more)]
        return Snapshot(header, buffers, len(steady))

    def nbytes(self) -> int:
        return sum(buffer.size for buffer in StateReplay.snapshot(self).buffers)

    def record(self, place: int, count: int, before: Callable[[], None]) -> Recorder:
        recorder = Recorder(place, count, before, self._recorders.remove)
        self._recorders.append(recorder)
        return recorder

    def rest(self) -> Sequence[bytes | memoryview]:
        replayed = self._names_replayed()
        kept = {name: self._captured(v) for name, v in self._values.items() if name not in replayed}
        return objects.pieces_of(kept)

    def load(self, header: bytes, buffers: list[np.ndarray]) -> None:
        replayed, others, steady = pickle.loads(header)
        values = objects.unpickled([replayed, *buffers[:steady]])
        self._take({**values, **objects.unpickled([others, *buffers[steady:]])}, ())

    def apply(self, header: bytes, data: np.ndarray) -> None:
        stream, sizes, small = pickle.loads(header)
        buffers, position = [], 0
        for size in sizes:
            # Each array gets its own memory, so its elements are aligned, and the hook may keep it.
            buffers.append(data[position : position + size].copy())
            position += size
        self._values.update(small)
        given, named = objects.unpickled([stream, *buffers])
        self._call(*given, **named)

    def load_rest(self, payload: memoryview) -> None:
        given, replayed = objects.from_pieces(payload), self._names_replayed()
        self._take({**given, **dict.fromkeys(replayed)}, replayed)
