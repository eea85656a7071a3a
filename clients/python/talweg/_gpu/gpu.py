# SPDX-License-Identifier: Apache-2.0
"""The rank's side of docs/gpu.md: tensors on GPUs, handed to the agent where they lie.

Nothing here knows frameworks: a tensor is a Place. A tensor that the agent cannot have goes through
host memory (host_path.py).
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from talweg._client import Client, Handle
from talweg._declaration import Declaration
from talweg._gpu.driver import Driver
from talweg._gpu.host_path import HostPath
from talweg._gpu.place import Place
from talweg._library import native
from talweg.errors import (
    Busy,
    GpuError,
    InvalidArgument,
    OutOfMemory,
    PermissionDenied,
    TalwegError,
    Timeout,
    Unsupported,
)

_log = logging.getLogger("talweg")

# The agent's answers if it cannot have the memory.
_REFUSALS = (Unsupported, PermissionDenied, OutOfMemory)
_REOPEN_ASK_S = 0.02
_UNSHAREABLE = (
    "memory of expandable segments or of cudaMallocAsync (see PYTORCH_CUDA_ALLOC_CONF), and managed "
    "memory, cannot be shared with the agent"
)


class _Allocation:
    """Memory that the driver has allocated. A tensor is a part of it."""

    def __init__(self, base: int, nbytes: int, buffer_id: int) -> None:
        self.base = base
        self.end = base + nbytes
        self.buffer_id = buffer_id
        self.buffer: int | None = None  # The agent's number for it; None: the agent cannot have it.


class _Exports:
    """The allocations of tensors. Each is handed to the agent once.

    The framework may free their memory between rounds. find() notices that by the allocation's
    number, which no other allocation ever has: docs/decisions/gpu-memory-is-not-held.md.
    """

    def __init__(
        self,
        connection: native.Connection,
        driver: Driver,
        refuse: Callable[[int, str, str], None],
    ) -> None:
        self._connection = connection
        self._driver = driver
        self._refuse = refuse
        self._uuids: dict[int, bytes] = {}
        self._bases: list[int] = []  # The keys of `_allocations`, sorted.
        self._allocations: dict[int, _Allocation] = {}
        self._freed: list[_Allocation] = []  # Freed, but the agent has not let them go yet.

    def find(self, place: Place) -> _Allocation | None:
        """Returns the allocation around the tensor; None if the agent cannot have it."""
        at = bisect.bisect_right(self._bases, place.address) - 1
        known = self._allocations[self._bases[at]] if at >= 0 else None
        if (
            known is None
            or place.address >= known.end
            or self._driver.buffer_id(place.address) != known.buffer_id
        ):
            known = self._export(place)
        if known is None or known.buffer is None or place.end > known.end:
            return None
        return known

    def _export(self, place: Place) -> _Allocation | None:
        self._release_freed()
        buffer_id = self._driver.buffer_id(place.address)
        if buffer_id is None:
            self._refuse(
                place.gpu, "unknown", f"it is not an allocation of its own; {_UNSHAREABLE}"
            )
            return None
        base, nbytes = self._driver.allocation(place.address)
        if base in self._allocations:
            self._refuse(place.gpu, "in part", "the agent sees a part of their memory only")
            return None
        allocation = _Allocation(base, nbytes, buffer_id)
        bisect.insort(self._bases, base)
        self._allocations[base] = allocation
        try:
            handle = self._driver.memory_handle(base)
        except GpuError as error:
            self._refuse(place.gpu, "unshareable", f"{error}; {_UNSHAREABLE}")
            return allocation
        try:
            buffer, mapped = self._connection.gpu_export(self._uuid(place.gpu), buffer_id, handle)
        except _REFUSALS as error:
            self._refuse(place.gpu, type(error).__name__, str(error))
            return allocation
        allocation.buffer = buffer
        allocation.end = base + min(nbytes, mapped)
        return allocation

    def _uuid(self, gpu: int) -> bytes:
        uuid = self._uuids.get(gpu)
        if uuid is None:
            uuid = self._uuids[gpu] = self._driver.uuid(gpu)
        return uuid

    def _release_freed(self) -> None:
        """Makes the agent unmap what the framework has freed."""
        for base in list(self._bases):
            allocation = self._allocations[base]
            if self._driver.buffer_id(base) != allocation.buffer_id:
                self._bases.remove(base)
                del self._allocations[base]
                if allocation.buffer is not None:
                    self._freed.append(allocation)
        held = []
        for allocation in self._freed:
            assert allocation.buffer is not None
            try:
                self._connection.gpu_unexport(allocation.buffer)
            except Busy:  # The program freed it with its round open. A later call tries again.
                held.append(allocation)
        self._freed = held


@dataclass
class _Placed:
    """A tensor that the agent knows on a GPU."""

    tensor: int
    declaration: Declaration
    gpu: int
    # The agent makes both events.
    pushed: int  # Event: the rank's stream has written the contribution.
    taken: int  # Event: the agent has written the result.


@dataclass(frozen=True)
class _Push:
    """What is needed to push a round, the first time or again."""

    name: str
    placed: _Placed
    place: Place
    stream: int  # The framework's current stream at the push.
    buffer: int
    offset: int
    priority: int


class _GpuRound(Handle):
    """A round whose contribution lies on a GPU. Its result is written there."""

    def __init__(self, gpus: Gpus, push: _Push, round_: int, **ends: Any) -> None:
        super().__init__(gpus.client, push.placed.tensor, round_, push.name, **ends)
        self._gpus = gpus
        self._push = push

    def is_complete(self, connection: native.Connection) -> bool:
        try:
            return super().is_complete(connection)
        except native.EventsLost:
            self._gpus.push_again(self._push)
            return False

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        while True:
            try:
                super().take(connection, timeout_s)
                break
            except native.EventsLost:
                self._gpus.push_again(self._push)
            except Timeout:
                raise
            except TalwegError:
                # While the agent is not well it may still write into the memory, so that stays.
                if self._gpus.agent_is_well():
                    self._gpus.close_round(self.name)
                raise
        self.order_result()
        self._gpus.close_round(self.name)

    def order_result(self) -> None:
        self._gpus.order_result(self._push)


class Gpus:
    """A client's rounds of tensors on GPUs. Any thread may call any method."""

    def __init__(self, client: Client, driver: Driver) -> None:
        self.client = client
        self._driver = driver
        # One lock for everything: a declaration waits for agents only, never for ranks' pushes.
        self._lock = threading.Lock()
        self._exports = _Exports(client.connection, driver, self._refuse)
        self._host = HostPath(client, driver, self.close_round)
        self._placed: dict[str, _Placed] = {}
        self._on_host: set[str] = set()  # Tensors that the agent wants from host memory.
        self._open: dict[str, Any] = {}  # What each tensor's open round keeps alive.
        self._told: set[tuple[int, str]] = set()

    def declare(self, name: str, declaration: Declaration, place: Place, priority: int) -> None:
        """Declares a tensor on the GPU of `place`, as Tensors.declare() does."""
        with self._lock, self._driver.context(place.gpu):
            if self._find(name, declaration, place, priority) is None:
                self.client.tensors.declare(name, declaration, priority)

    def declare_all(
        self, declarations: Sequence[tuple[str, Declaration, int]], place: Place
    ) -> None:
        """Declares tensors on one GPU, as Tensors.declare_all() does. `place` is one tensor's.

        Each tensor gets its events at its first push.
        """
        with self._lock, self._driver.context(place.gpu):
            is_taken = self._exports.find(place) is not None
        if is_taken:
            self.client.tensors.declare_all_on_gpu(declarations)
        else:
            self.client.tensors.declare_all(declarations)

    def push(
        self,
        name: str,
        declaration: Declaration,
        place: Place,
        priority: int,
        result: Any,
        keep: Any,
        finish: Callable[[], None] | None = None,
    ) -> Handle:
        """Starts a round of the tensor at `place`, after the work of the framework's stream.

        The result is written there. The memory is the agent's until the result is taken; `keep` is
        kept alive for as long. Raises Busy while the tensor's last round is open, and
        InvalidArgument if the stream is captured into a CUDA graph.
        """
        self.client.check_push(declaration)
        stream = place.stream()
        ends = {"result": result, "keep": keep, "finish": finish}
        with self._lock, self._driver.context(place.gpu):
            if name in self._open:
                raise Busy(f"tensor '{name}': its last round has not been synchronized yet")
            if self._driver.is_capturing(stream):
                raise InvalidArgument(
                    f"tensor '{name}' was pushed while its stream is captured into a CUDA graph: "
                    "push outside of the graph"
                )
            found = self._find(name, declaration, place, priority)
            if found is None:
                handle = self._host.push(name, declaration, place, stream, priority, ends)
            else:
                push = _Push(name, found[0], place, stream, *found[1:], priority)
                handle = _GpuRound(self, push, self._record_and_push(push), **ends)
            # The program may drop the handle, but the agent may still write into the memory.
            self._open[name] = keep
        self.client.count_push(declaration)
        return handle

    def _find(
        self, name: str, declaration: Declaration, place: Place, priority: int
    ) -> tuple[_Placed, int, int] | None:
        """Returns the tensor, and its buffer and offset; None if it goes through host memory."""
        if name in self._on_host:
            return None
        allocation = self._exports.find(place)
        if allocation is None:
            return None
        assert allocation.buffer is not None
        placed = self._placed.get(name)
        if placed is None or placed.gpu != place.gpu or placed.declaration != declaration:
            try:
                placed = self._place(name, declaration, place.gpu, priority, allocation.buffer)
            except (GpuError, *_REFUSALS) as error:
                self._on_host.add(name)
                self._refuse(place.gpu, f"tensor, {type(error).__name__}", str(error))
                return None
        return placed, allocation.buffer, place.address - allocation.base

    def _place(
        self, name: str, declaration: Declaration, gpu: int, priority: int, buffer: int
    ) -> _Placed:
        before = self._placed.get(name)
        if before is not None and before.declaration == declaration:
            # It was on another GPU and gets new events. The agent destroys the old ones.
            del self._placed[name]
            self._driver.destroy_event(before.pushed)
            self._driver.destroy_event(before.taken)
        tensor = self.client.tensors.declare_on_gpu(name, declaration, priority)
        pushed, taken = self.client.connection.gpu_place(tensor, buffer, declaration.signature)
        placed = _Placed(
            tensor,
            declaration,
            gpu,
            self._driver.open_event(pushed),
            self._driver.open_event(taken),
        )
        self._placed[name] = placed
        return placed

    def _record_and_push(self, push: _Push) -> int:
        """Records the event of the push, pushes, and returns the round."""
        connection = self.client.connection
        placed = push.placed
        for attempt in itertools.count():
            # An imported event must not be used after the end of the process that made it.
            connection.check_health()
            try:
                self._driver.record(placed.pushed, push.stream)
                return connection.gpu_push_pull(
                    placed.tensor, push.buffer, push.offset, push.priority
                )
            except native.EventsLost:
                pass
            except GpuError:  # The agent may have lost the event.
                if attempt > 0:
                    raise
            self._place_again(placed, push.buffer)
        raise AssertionError

    def _place_again(self, placed: _Placed, buffer: int) -> None:
        """Gets new events for the tensor. The old ones are left alone: no call may use them."""
        connection = self.client.connection
        while True:
            try:
                pushed, taken = connection.gpu_place(
                    placed.tensor, buffer, placed.declaration.signature
                )
                break
            except Unsupported:  # The GPU is being opened again, or check_health() says why not.
                connection.check_health()
                time.sleep(_REOPEN_ASK_S)
        placed.pushed = self._driver.open_event(pushed)
        placed.taken = self._driver.open_event(taken)

    def push_again(self, push: _Push) -> None:
        """Pushes an open round again, for an agent that no longer knows that it was pushed."""
        with self._lock, self._driver.context(push.place.gpu):
            self._record_and_push(push)

    def order_result(self, push: _Push) -> None:
        """Makes the framework's stream wait for the result, before all later work."""
        # The result has arrived already. If the agent is gone, or has lost the GPU, its events must
        # not be waited for. There is no need to, either.
        if self.agent_is_well():
            with self._driver.context(push.place.gpu), contextlib.suppress(GpuError):
                self._driver.wait(push.place.stream(), push.placed.taken)

    def agent_is_well(self) -> bool:
        """Whether the job can go on."""
        try:
            self.client.connection.check_health()
        except TalwegError:
            return False
        return True

    def close_round(self, name: str) -> None:
        """Drops what the tensor's round kept alive: the round is over."""
        with self._lock:
            self._open.pop(name, None)

    def _refuse(self, gpu: int, kind: str, reason: str) -> None:
        if (gpu, kind) not in self._told:
            self._told.add((gpu, kind))
            _log.warning(
                "talweg: rank %d: tensors on GPU %d go through host memory, which takes longer: %s",
                self.client.rank,
                gpu,
                reason,
            )

    def close(self) -> None:
        """Closes after the goodbye. Never frees memory that the agent may still write into."""
        self._host.close()
        with self._lock:
            _abandoned.extend(self._open.values())


_abandoned: list[Any] = []

_lock = threading.Lock()
_driver: Driver | None = None
_driver_error: GpuError | None = None
_gpus: dict[int, Gpus] = {}  # By id of a client that is not closed.


def driver() -> Driver | None:
    """Returns the process's driver; None if there is none, with one warning. Opens it if needed."""
    with _lock:
        return _open_driver()


def _open_driver() -> Driver | None:
    global _driver, _driver_error
    if _driver is None and _driver_error is None:
        try:
            _driver = Driver()
        except GpuError as error:
            _driver_error = error
            _log.warning("talweg: tensors on GPUs go through host memory: %s", error)
    return _driver


def gpus_of(client: Client) -> Gpus | None:
    """Returns the client's Gpus; None if it has no agent, or if there is no driver."""
    if client.is_alone:
        return None
    with _lock:
        gpus = _gpus.get(id(client))
        if gpus is not None:
            return gpus
        opened = _open_driver()
        if opened is None:
            return None
        gpus = _gpus[id(client)] = Gpus(client, opened)
        client.call_when_closed(lambda: _close(client))
        return gpus


def _close(client: Client) -> None:
    with _lock:
        gpus = _gpus.pop(id(client))
    gpus.close()
