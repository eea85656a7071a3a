# SPDX-License-Identifier: Apache-2.0
"""Takes tensors on GPUs through host memory, if the agent cannot have them where they lie.

Each tensor has pinned memory of its own. After the work of the framework's stream, a stream of
Talweg copies the tensor down, and a thread pushes it when the copy is done. A second stream copies
the result up, and then the framework's stream goes on. No push and no take waits for the GPU.

Each of the framework's streams has two such streams and a thread of its own. One stream may wait
for another rank's kernels, and these may wait for a tensor from another stream of this rank.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from talweg._client import Client, Declared, Handle
from talweg._declaration import Declaration
from talweg._gpu.driver import Driver
from talweg._gpu.place import Place
from talweg._library import native
from talweg.errors import GpuError, TalwegError, Timeout

_END_S = 5.0


@dataclass
class _Pinned:
    """A tensor's pinned memory on the host, and the events of its copies."""

    gpu: int
    address: int
    nbytes: int
    written: int  # Event: the framework's stream has done its work from before the push.
    down: int  # Event: the contribution is in this memory.
    up: int  # Event: the result is on the GPU.


@dataclass
class _Push:
    """A push that waits for its copy."""

    declared: Declared
    pinned: _Pinned
    priority: int
    keep: Any
    round: futures.Future[int]


class _Lane:
    """Pushes the tensors of one of the framework's streams, in the stream's order."""

    def __init__(self, connection: native.Connection, driver: Driver, gpu: int) -> None:
        """Must be called within the GPU's context."""
        self.gpu = gpu
        self.down = driver.new_stream()
        self.up = driver.new_stream()
        self._connection = connection
        self._driver = driver
        self._queue: queue.SimpleQueue[_Push | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="talweg-gpu-host", daemon=True)
        self._thread.start()

    def put(self, push: _Push) -> None:
        self._queue.put(push)

    def _run(self) -> None:
        while (push := self._queue.get()) is not None:
            try:
                with self._driver.context(self.gpu):
                    self._driver.synchronize(push.pinned.down)
                declared = push.declared
                round_ = self._connection.push_parts(
                    declared.tensor, push.pinned.address, None, push.priority, declared.signature
                )
            except Exception as error:  # Waiting for the round raises it.
                push.round.set_exception(error)
            else:
                push.round.set_result(round_)

    def close(self) -> bool:
        """Ends the thread. False: a GPU hangs, so the streams, events and memory must stay."""
        self._queue.put(None)
        self._thread.join(_END_S)
        if self._thread.is_alive():
            return False
        with self._driver.context(self.gpu):
            for stream in (self.down, self.up):
                self._driver.destroy_stream(stream)
        return True


class _HostRound(Handle):
    """A round that begins when the contribution has been copied."""

    def __init__(
        self, path: HostPath, pushed: _Push, lane: _Lane, name: str, place: Place, **ends: Any
    ) -> None:
        super().__init__(
            path.client, pushed.declared.tensor, 0, name, pushed.pinned.address, **ends
        )
        self._path = path
        self._pushed = pushed
        self._lane = lane
        self._place = place

    def is_complete(self, connection: native.Connection) -> bool:
        if not self._pushed.round.done():
            return False
        if self._pushed.round.exception() is not None:
            return True  # take() raises it.
        return connection.poll(self.tensor, self._pushed.round.result())

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        begin = time.monotonic()
        try:
            self.round = self._pushed.round.result(timeout_s)
        except futures.TimeoutError:
            raise Timeout(
                f"tensor '{self.name}' has not been copied from the GPU within {timeout_s} s"
            ) from None
        except TalwegError:  # The round was never pushed.
            self._path.close_round(self.name)
            raise
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s - (time.monotonic() - begin))
        try:
            super().take(connection, timeout_s)
        except Timeout:
            raise
        except TalwegError:
            self._path.close_round(self.name)
            raise
        self._path.copy_up(self._pushed.pinned, self._lane, self._place)
        self._path.close_round(self.name)

    def order_result(self) -> None:
        self._path.order_result(self._pushed.pinned, self._place)


class HostPath:
    """A client's tensors that go through host memory.

    push() is called under the lock of Gpus, within the GPU's context.
    """

    def __init__(self, client: Client, driver: Driver, close_round: Callable[[str], None]) -> None:
        self.client = client
        self._driver = driver
        self.close_round = close_round
        self._pinned: dict[str, _Pinned] = {}
        self._lanes: dict[tuple[int, int], _Lane] = {}  # By GPU and stream.

    def push(
        self,
        name: str,
        declaration: Declaration,
        place: Place,
        stream: int,
        priority: int,
        ends: dict[str, Any],
    ) -> Handle:
        declared = self.client.tensors.declare(name, declaration, priority)
        lane = self._lanes.get((place.gpu, stream))
        if lane is None:
            lane = _Lane(self.client.connection, self._driver, place.gpu)
            self._lanes[place.gpu, stream] = lane
        pinned = self._pinned_of(name, place)
        driver = self._driver
        driver.record(pinned.written, stream)
        driver.wait(lane.down, pinned.written)
        driver.wait(lane.down, pinned.up)  # The last result must have left the memory.
        driver.copy_to_host(pinned.address, place.address, place.nbytes, lane.down)
        driver.record(pinned.down, lane.down)
        pushed = _Push(declared, pinned, priority, ends["keep"], futures.Future())
        lane.put(pushed)
        return _HostRound(self, pushed, lane, name, place, **ends)

    def copy_up(self, pinned: _Pinned, lane: _Lane, place: Place) -> None:
        """Copies the result to where the contribution came from. The framework's stream waits.

        What that stream did to the memory before the push was done before the copy down.
        """
        with self._driver.context(place.gpu):
            self._driver.copy_to_device(place.address, pinned.address, place.nbytes, lane.up)
            self._driver.record(pinned.up, lane.up)
            self._driver.wait(place.stream(), pinned.up)

    def order_result(self, pinned: _Pinned, place: Place) -> None:
        """Makes the framework's stream wait for the last copy up."""
        with self._driver.context(place.gpu):
            self._driver.wait(place.stream(), pinned.up)

    def _pinned_of(self, name: str, place: Place) -> _Pinned:
        pinned = self._pinned.get(name)
        if pinned is not None and pinned.gpu == place.gpu:
            return pinned
        if pinned is not None:
            self._free(pinned)
        driver = self._driver
        address = driver.allocate_host(place.nbytes)
        events = [driver.new_event() for _ in range(3)]
        pinned = self._pinned[name] = _Pinned(place.gpu, address, place.nbytes, *events)
        return pinned

    def _free(self, pinned: _Pinned) -> None:
        with self._driver.context(pinned.gpu):
            self._driver.synchronize(pinned.up)
            for event in (pinned.written, pinned.down, pinned.up):
                self._driver.destroy_event(event)
            self._driver.free_host(pinned.address)

    def close(self) -> None:
        """Closes after the goodbye. Pushes that still wait for their copies fail."""
        with contextlib.suppress(GpuError):  # A lost context has freed everything already.
            ended = [lane.close() for lane in self._lanes.values()]
            if all(ended):
                for pinned in self._pinned.values():
                    self._free(pinned)
        self._lanes.clear()
        self._pinned.clear()
