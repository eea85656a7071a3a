# SPDX-License-Identifier: Apache-2.0
"""A job of one rank without an agent: what a program is that no launcher has started.

Every operation returns its own input, by the same rules as over an agent: dtypes, declarations,
open rounds. Nothing leaves the process.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from talweg import errors
from talweg._declaration import Declaration, DType, Op
from talweg._library import native, native_arguments
from talweg._node.stderr import say

# Each of these means that a launcher has started this process as a rank of a job. _node.launchers
# knows some of these launchers. SLURM_PROCID alone does not count: a batch script has it, too.
_LAUNCHED = (
    "TALWEG_AGENT_SOCKET",
    "TALWEG_LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "HOROVOD_RANK",
    "BYTEPS_LOCAL_RANK",
)
_NAME_BYTES_MAX = 1024


def is_alone(environment: Mapping[str, str]) -> bool:
    """Whether no launcher has started this process, so that it is a job of its own."""
    return not any(environment.get(name) for name in _LAUNCHED)


def warn_of_scheduler(environment: Mapping[str, str]) -> None:
    """Warns a user who expects a rank that is alone to join a scheduler."""
    scheduler = environment.get("TALWEG_SCHEDULER")
    if scheduler:
        say(
            f"TALWEG_SCHEDULER={scheduler} has no effect: no launcher has started this process, so it "
            "is a job of one rank, without an agent that could join. Start it by talweg run "
            f"--scheduler={scheduler} --nodes=N --node-rank=K, by torchrun, mpirun or srun, or unset "
            "the variable"
        )


def _check(name: str, declaration: Declaration) -> None:
    """Refuses here what an agent would refuse, so that a program fails before it is launched."""
    if not 1 <= len(name.encode()) <= _NAME_BYTES_MAX:
        raise errors.InvalidArgument(
            f"a tensor's name has {len(name.encode())} bytes; it must have 1 to {_NAME_BYTES_MAX} bytes"
        )
    declaration.require(f"tensor '{name}'")


class LocalConnection(native.Connection):
    """A connection whose calls are answered in this process."""

    # Overrides every method of the base class that would talk to the agent.
    def __init__(self) -> None:
        self.rank, self.size, self.local_rank, self.local_size = 0, 1, 0, 1
        self._library = native.library()  # For computations that need no agent.
        self._lock = threading.Lock()
        self._declared: list[tuple[str, Declaration]] = []
        self._rounds: list[int] = []
        # The data of each open round, and its size in bytes. A tensor keeps its memory, because new
        # memory costs more than the copies.
        self._given: dict[int, bytearray] = {}
        self._open: dict[int, int] = {}
        self._closed = False
        self._pid = os.getpid()

    @property
    def handle(self) -> int:
        return 0

    def retire(self) -> None:
        """Does nothing: there is no memory of an agent's."""

    def close(self, timeout_s: float = 5.0) -> None:
        self._closed = True

    def ranks_summed(self, tensor: int) -> int:
        return 1

    def left_out_count(self, tensor: int) -> int:
        return 0

    def steps_ended(self) -> int:
        return 0

    def newest_epoch(self) -> int:
        return 0

    def check_health(self) -> None:
        if os.getpid() != self._pid:
            raise errors.Forked(
                "this process is a fork of the one that called talweg.init(): call it here, too"
            )
        if self._closed:
            raise errors.Closed("talweg.shutdown() was called: call talweg.init() again")

    def declare_all(
        self,
        declarations: Sequence[tuple[str, int, int, int, int, int]],
        on_gpu: bool = False,
        in_place: bool = False,
    ) -> list[int]:
        self.check_health()
        return [self._declare_one(*declaration) for declaration in declarations]

    def declare_collective(
        self,
        name: str,
        dtype: int,
        op: int,
        shares: tuple[int, int],
        root_rank: int,
        ranks: Sequence[int],
        element_count: int,
        priority: int = 0,
        side: bool = False,
        encoding: int = 0,
        patience_ms: int = 0,
    ) -> int:
        self.check_health()
        of = (name, dtype, op, root_rank, element_count, priority)
        return self._declare_one(*of, patience_ms=patience_ms)

    def _declare_one(
        self,
        name: str,
        dtype: int,
        op: int,
        root_rank: int,
        count: int,
        priority: int,
        patience_ms: int = 0,
    ) -> int:
        native_arguments.check_declaration(name, root_rank, count, priority)
        of = (DType(dtype), count, Op(op), root_rank)
        declaration = Declaration(*of, patience_ms=patience_ms)
        _check(name, declaration)
        with self._lock:
            self._declared.append((name, declaration))
            self._rounds.append(0)
            return len(self._declared) - 1

    def sums_in_place(self, tensor: int) -> bool:
        return False

    def push_pull(self, tensor: int, address: int, priority: int) -> int:
        return self._push(tensor, address, self._declared[tensor][1].nbytes)

    def push_parts(
        self,
        tensor: int,
        address: int | bytes,
        lengths: Sequence[int] | None,
        priority: int = 0,
        signature: int = 0,
    ) -> int:
        # The only rank gives the only part, and gets it.
        nbytes = self._declared[tensor][1].nbytes if lengths is None else sum(lengths)
        return self._push(tensor, address, nbytes)

    def _push(self, tensor: int, address: int | bytes, nbytes: int) -> int:
        self.check_health()
        name = self._declared[tensor][0]
        with self._lock:
            if tensor in self._open:
                raise errors.Busy(
                    f"tensor '{name}' has an open round: synchronize it before the next push_pull"
                )
            if nbytes > len(self._given.get(tensor, b"")):
                self._given[tensor] = bytearray(nbytes)
            if nbytes:
                ctypes.memmove(self._memory(tensor), address, nbytes)
            self._open[tensor] = nbytes
            self._rounds[tensor] += 1
            return self._rounds[tensor]

    def poll(self, tensor: int, round_: int) -> bool:
        return True

    def wait(self, tensor: int, round_: int, out: int, timeout_s: float | None) -> None:
        self.check_health()
        with self._lock:
            nbytes = self._open.pop(tensor)
            if out and nbytes:
                ctypes.memmove(out, self._memory(tensor), nbytes)

    def _memory(self, tensor: int) -> Any:
        given = self._given[tensor]
        return (ctypes.c_char * len(given)).from_buffer(given)

    def wait_parts(
        self, tensor: int, round_: int, out: int, out_bytes: int, end: float | None = None
    ) -> bool:
        self.wait(tensor, round_, out, None)
        return True

    def parts_held(self, tensor: int) -> int:
        return 1

    def push_places(
        self,
        tensor: int,
        places: Sequence[int],
        lengths: Sequence[int],
        own: int = 0,
        priority: int = 0,
    ) -> int:
        # The part is taken from where it is pushed, even if it already has a place in the result.
        return self._push(tensor, places[0], lengths[0])

    def wait_places(
        self,
        tensor: int,
        round_: int,
        places: Sequence[int],
        rooms: Sequence[int],
        end: float | None = None,
    ) -> bool:
        self.wait(tensor, round_, places[0], None)
        return True

    def exchange(self, tensor: int, call: Any, round_at: Any, alike_at: Any, round_: Any) -> bool:
        self.check_health()
        given = call._obj
        ctypes.memmove(given.out, (given.data or 0) + given.offset, given.bytes)
        alike_at._obj.value = 1
        return True

    def finish_exchange(self, tensor: int, call: Any, alike_at: Any) -> None:
        given = call._obj
        ctypes.memmove(given.out, given.all + given.word_bytes + given.offset, given.bytes)
        alike_at._obj.value = 1

    def completion_fd(self) -> int:
        raise errors.Unsupported("a job of one rank has no descriptor: its rounds are over at once")

    def barrier(self, end: float | None = None) -> bool:
        self.check_health()
        return True
