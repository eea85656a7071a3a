# SPDX-License-Identifier: Apache-2.0
"""Copies tensors on GPUs to and from pinned host memory, for collectives.

A call records an event on the framework's stream. A stream of Talweg waits for that event and
copies the tensor down. The call's first round is pushed when the copy is done. A second stream
copies the result up, and taking the result waits for that copy. So no stream of the framework waits
for another rank, and work that it gets after the result was taken finds the result.

Each of the framework's streams has two such streams of its own. One stream may wait for another
rank's kernels, and these may wait for a tensor from another stream of this rank.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import NamedTuple

from talweg._gpu.driver import Driver
from talweg._gpu.place import Place
from talweg.errors import InvalidArgument

# A wait for a copy polls without a pause for this long, and then with pauses of this length.
_SPIN_S, _PAUSE_S = 100e-6, 200e-6
_PINNED_BYTES_MIN = 4096


class Pinned:
    """A piece of pinned memory. It is free again when the last reference to it goes."""

    def __init__(self, address: int, home: collections.deque[int]) -> None:
        self.address = address
        self._home = home

    def __del__(self) -> None:
        self._home.append(self.address)


class Copy:
    """A copy between a GPU and pinned memory. It keeps the memory until the copy is done."""

    def __init__(self, staging: Staging, gpu: int, pinned: Pinned, event: int) -> None:
        self._staging = staging
        self._gpu = gpu
        self._pinned = pinned
        self._event = event
        self._is_done = False

    @property
    def address(self) -> int:
        """The address of the pinned memory."""
        return self._pinned.address

    def is_done(self, until: float | None = 0.0) -> bool:
        """Waits until time.monotonic() is `until`, for None without limit. Returns whether the
        copy is done.

        Any thread may call this, any number of times.
        """
        if not self._is_done:
            self._is_done = self._staging.wait(self._gpu, self._event, until)
        return self._is_done

    def __del__(self) -> None:
        # The GPU may still be copying.
        self._staging.leave(self._gpu, self._event, self._pinned)


class Streams(NamedTuple):
    """The two streams of Talweg beside one of the framework's streams, on one GPU."""

    gpu: int
    down: int
    up: int


class Staging:
    """A process's streams, events and pinned memory. Any thread may call any method."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, int], Streams] = {}  # By GPU and the framework's stream.
        self._events: dict[int, list[int]] = {}  # By GPU; free for use.
        self._free: dict[int, collections.deque[int]] = {}  # By length.
        self._left: collections.deque[tuple[int, int, Pinned]] = collections.deque()

    def begin(self, place: Place) -> Streams:
        """Returns the streams for a call whose tensor is at `place`, or on its GPU.

        Copies on them come after the work that the framework's stream has by now. Raises
        InvalidArgument if that stream is captured into a CUDA graph.
        """
        driver, gpu, stream = self._driver, place.gpu, place.stream()
        with self._lock, driver.context(gpu):
            if driver.is_capturing(stream):
                raise InvalidArgument(
                    "a collective was called while its stream is captured into a CUDA graph: call "
                    "it outside of the graph"
                )
            self._collect()
            streams = self._streams.get((gpu, stream))
            if streams is None:
                streams = Streams(gpu, driver.new_stream(), driver.new_stream())
                self._streams[gpu, stream] = streams
            mark = self._event(gpu)
            driver.record(mark, stream)
            for each in (streams.down, streams.up):
                driver.wait(each, mark)
            self._events[gpu].append(mark)  # A new record does not change what the streams await.
        return streams

    def copy_down(self, streams: Streams, source: int, nbytes: int) -> Copy:
        """Copies `nbytes` at `source` to pinned memory."""
        gpu, stream = streams.gpu, streams.down
        pinned = self.room(gpu, nbytes)
        with self._lock, self._driver.context(gpu):
            self._driver.copy_to_host(pinned.address, source, nbytes, stream)
            return self._recorded(gpu, stream, pinned)

    def copy_up(
        self, streams: Streams, pinned: Pinned, offset: int, target: int, nbytes: int
    ) -> Copy:
        """Copies `nbytes` at `offset` of the pinned memory to `target`."""
        gpu, stream = streams.gpu, streams.up
        with self._lock, self._driver.context(gpu):
            self._driver.copy_to_device(target, pinned.address + offset, nbytes, stream)
            return self._recorded(gpu, stream, pinned)

    def room(self, gpu: int, nbytes: int) -> Pinned:
        """Returns pinned memory of at least `nbytes`."""
        length = _PINNED_BYTES_MIN
        while length < nbytes:
            length *= 2
        with self._lock, self._driver.context(gpu):
            free = self._free.setdefault(length, collections.deque())
            address = free.pop() if free else self._driver.allocate_host(length)
        return Pinned(address, free)

    def wait(self, gpu: int, event: int, until: float | None) -> bool:
        """Waits for an event as Copy.is_done() does."""
        begin = time.monotonic()
        with self._driver.context(gpu):
            if until is None:
                self._driver.synchronize(event)
                return True
            while not self._driver.is_done(event):
                now = time.monotonic()
                if now >= until:
                    return False
                if now - begin >= _SPIN_S:
                    time.sleep(min(_PAUSE_S, until - now))
        return True

    def settle(self, place: Place) -> None:
        """Waits for the work that the framework's stream has by now."""
        with self._lock, self._driver.context(place.gpu):
            event = self._event(place.gpu)
            self._driver.record(event, place.stream())
        self.wait(place.gpu, event, None)
        with self._lock:
            self._events[place.gpu].append(event)

    def leave(self, gpu: int, event: int, pinned: Pinned) -> None:
        """Takes back a copy that nobody waits for. Callers may hold any lock, so it takes none."""
        self._left.append((gpu, event, pinned))

    def _recorded(self, gpu: int, stream: int, pinned: Pinned) -> Copy:
        event = self._event(gpu)
        self._driver.record(event, stream)
        return Copy(self, gpu, pinned, event)

    def _event(self, gpu: int) -> int:
        events = self._events.setdefault(gpu, [])
        return events.pop() if events else self._driver.new_event()

    def _collect(self) -> None:
        """Frees the events and memory of copies that were left and that are done by now."""
        for _ in range(len(self._left)):
            gpu, event, pinned = left = self._left.popleft()
            with self._driver.context(gpu):
                if self._driver.is_done(event):
                    self._events.setdefault(gpu, []).append(event)
                else:
                    self._left.append(left)
            del pinned
