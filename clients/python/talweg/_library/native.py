# SPDX-License-Identifier: Apache-2.0
"""libtalweg.so through ctypes: the calls of talweg.h, with statuses turned into exceptions.

Nothing here knows arrays: tensors are numbers, memory is an address. ctypes lets other Python
threads run during every call.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from talweg import errors
from talweg._library import native_exchange, native_gpu
from talweg._library.native_arguments import (
    checked_priority,
    encode,
    nanoseconds,
    within,
)
from talweg._library.native_errors import check, last_error
from talweg._library.native_exchange import TIMEOUT, WAIT_SLICE_NS, ExchangeCalls
from talweg._library.native_gpu import GpuCalls
from talweg._library.native_structures import MEMBER_STANDBY as MEMBER_STANDBY
from talweg._library.native_structures import (
    Collective,
    Declaration,
    Member,
    Membership,
    Options,
)

_ANY_LOCAL_RANK = 0xFFFFFFFF
_PENDING = 17
_BROADCAST = 6
_WHOLE = 1
_EVENTS_LOST = 20
# A slice is many times the time that the ranks need to agree on so many tensors.
_DECLARE_SLICE_NS = 1_000_000_000
_DECLARED_AT_ONCE = 1024


class EventsLost(Exception):
    """The agent has opened a GPU again. Place the tensor again, and push its open round again."""


# The bytes of a text that says whom a round waits for, and how long the agent may take to tell.
_WAITS_BYTES = 1024
_WAITS_NS = 1_000_000_000

_client_p = ctypes.c_void_p
_i32, _u32, _i64, _u64 = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64

# The result and the arguments of each function, as in talweg.h.
_PROTOTYPES = {
    "talweg_version": (ctypes.c_char_p, []),
    "talweg_abi_version": (_u32, []),
    "talweg_last_error": (ctypes.c_char_p, []),
    "talweg_options_init_sized": (None, [ctypes.POINTER(Options), ctypes.c_size_t]),
    "talweg_connect": (ctypes.c_int, [ctypes.POINTER(Options), ctypes.POINTER(_client_p)]),
    "talweg_shutdown": (ctypes.c_int, [_client_p, _i64]),
    "talweg_free": (None, [_client_p]),
    "talweg_health": (ctypes.c_int, [_client_p]),
    "talweg_rank": (_u32, [_client_p]),
    "talweg_size": (_u32, [_client_p]),
    "talweg_local_rank": (_u32, [_client_p]),
    "talweg_local_size": (_u32, [_client_p]),
    "talweg_declare_all": (
        ctypes.c_int,
        [_client_p, ctypes.POINTER(Declaration), ctypes.c_size_t, _i64, ctypes.POINTER(_u32)],
    ),
    "talweg_declare_all_in_place": (
        ctypes.c_int,
        [_client_p, ctypes.POINTER(Declaration), ctypes.c_size_t, _i64, ctypes.POINTER(_u32)],
    ),
    "talweg_sums_in_place": (ctypes.c_int, [_client_p, _u32]),
    "talweg_contribution": (ctypes.c_void_p, [_client_p, _u32]),
    "talweg_attach": (ctypes.c_int, [_client_p, _u32, ctypes.c_void_p]),
    "talweg_detach": (ctypes.c_int, [_client_p, _u32]),
    "talweg_push_pull": (
        ctypes.c_int,
        [_client_p, _u32, ctypes.c_void_p, _i32, _i64, ctypes.POINTER(_u64)],
    ),
    "talweg_declare_collective": (
        ctypes.c_int,
        [_client_p, ctypes.c_char_p, ctypes.POINTER(Collective), _i32, _i64, ctypes.POINTER(_u32)],
    ),
    "talweg_push_parts": (
        ctypes.c_int,
        [_client_p, _u32, ctypes.c_void_p, ctypes.c_void_p, _u64, _i32, _i64, ctypes.POINTER(_u64)],
    ),
    "talweg_wait_parts": (ctypes.c_int, [_client_p, _u32, _u64, ctypes.c_void_p, _u64, _i64]),
    "talweg_scale": (
        ctypes.c_int,
        [ctypes.c_int, ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, _u64],
    ),
    "talweg_poll": (ctypes.c_int, [_client_p, _u32, _u64]),
    "talweg_wait": (ctypes.c_int, [_client_p, _u32, _u64, ctypes.c_void_p, _i64]),
    "talweg_wait_again": (ctypes.c_int, [_client_p, _u32, _u64, ctypes.c_void_p, _i64]),
    "talweg_barrier": (ctypes.c_int, [_client_p, ctypes.c_char_p, _i64]),
    "talweg_another_completion_fd": (ctypes.c_int, [_client_p, ctypes.POINTER(ctypes.c_int)]),
    "talweg_watch_by": (ctypes.c_int, [_client_p, ctypes.c_int, _u32, _u64, _u64]),
    "talweg_completed_by": (
        ctypes.c_int,
        [
            _client_p,
            ctypes.c_int,
            ctypes.POINTER(_u64),
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_size_t),
        ],
    ),
    "talweg_ranks_summed": (_u64, [_client_p, _u32]),
    "talweg_waits_for": (
        ctypes.c_int,
        [_client_p, _u32, _u64, ctypes.c_char_p, ctypes.c_size_t, _i64],
    ),
    "talweg_digest": (_u64, [ctypes.c_void_p, ctypes.c_size_t, _u64]),
    "talweg_ready": (ctypes.c_int, [_client_p, _i64]),
    "talweg_end_step": (ctypes.c_int, [_client_p, _i64]),
    "talweg_steps_ended": (_u64, [_client_p]),
    "talweg_newest_epoch": (_u64, [_client_p]),
    "talweg_get_membership": (
        ctypes.c_int,
        [_client_p, _u64, ctypes.POINTER(Membership), ctypes.POINTER(Member), _u32, _i64],
    ),
    "talweg_follow": (ctypes.c_int, [_client_p, _u64, _i64]),
}
_ABI_MAJOR = 1


def places_of(package: str, name: str) -> list[Path]:
    """Returns the paths where a library may be: in the wheel, or in Bazel's output.

    `package` is the folder that builds it, such as clients/c.
    """
    # Bazel's runfiles are links into the source tree, so both paths are searched.
    here, source = Path(__file__).absolute(), Path(__file__).resolve()
    found = [source.parents[1] / "lib" / name]
    for parent in [*here.parents, *source.parents]:
        found.append(parent / package / name)
        found.append(parent / "bazel-bin" / package / name)
    return found


def _candidates() -> list[Path]:
    told = os.environ.get("TALWEG_LIBRARY")
    return [Path(told)] if told else places_of("clients/c", "libtalweg.so")


def _load() -> ctypes.CDLL:
    tried = _candidates()
    path = next((candidate for candidate in tried if candidate.is_file()), None)
    if path is None:
        raise errors.TalwegError(
            f"libtalweg.so was not found at {tried[0]}: install the wheel, build "
            "//clients/c:libtalweg.so, or set TALWEG_LIBRARY to its path"
        )
    library = ctypes.CDLL(str(path))
    prototypes = {**_PROTOTYPES, **native_exchange.PROTOTYPES, **native_gpu.PROTOTYPES}
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name, None)
        if function is None:
            raise errors.VersionMismatch(
                f"{path} has no {name}: it is not a libtalweg.so, or older than this package; install "
                "the same version of both, or unset TALWEG_LIBRARY"
            )
        function.restype = result
        function.argtypes = arguments
    major = library.talweg_abi_version() >> 16
    if major != _ABI_MAJOR:
        raise errors.VersionMismatch(
            f"{path} has ABI version {major}, this package needs {_ABI_MAJOR}: install versions "
            "of both with the same major number, or unset TALWEG_LIBRARY"
        )
    return library


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """Returns the loaded library. The first call finds and loads it."""
    global _library
    if _library is None:
        _library = _load()
    return _library


class Connection(ExchangeCalls, GpuCalls):
    """A talweg_client. Any thread may call any method. close() ends the waits of other threads."""

    # Why this rank may not push yet; None if it may.
    refusal: str | None = None
    # Set while this rank's node takes part in no steps. It may declare nothing for all ranks then.
    is_standby = False
    # The end of the names of tensors that depend on ranks' numbers, after these have changed.
    view_suffix = ""
    # Set when its agent is lost and another Connection has taken its place.
    _is_retired = False
    # Set when code in another language knows the client's address.
    _is_lent = False
    # Called by a thread between two slices of a wait.
    attend: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        agent_socket: str | None,
        local_rank: int | None,
        timeout_s: float,
        standby: bool = False,
    ) -> None:
        self._handle = _client_p()
        self._library = library()
        options = Options()
        self._library.talweg_options_init_sized(ctypes.byref(options), ctypes.sizeof(Options))
        if agent_socket is not None:
            options.agent_socket = os.fsencode(agent_socket)
        options.local_rank = _ANY_LOCAL_RANK if local_rank is None else local_rank
        options.standby = standby
        options.timeout_ns = nanoseconds(timeout_s)
        self._check(self._library.talweg_connect(ctypes.byref(options), ctypes.byref(self._handle)))
        # A child's first call closes its copy of the socket, so the copy keeps no connection open.
        after_fork = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (call := after_fork()) and call())
        self.rank = int(self._library.talweg_rank(self._handle))
        self.size = int(self._library.talweg_size(self._handle))
        self.local_rank = int(self._library.talweg_local_rank(self._handle))
        self.local_size = int(self._library.talweg_local_size(self._handle))

    def _after_fork(self) -> None:
        self._library.talweg_health(self._handle)

    def retire(self) -> None:
        """Marks the connection as one by which nothing pushes any more: closed, or its agent lost.

        Its memory is freed with the last reference. Whatever shows that memory holds one, and so
        does each thread that is in a call.
        """
        self._is_retired = True

    def __del__(self) -> None:
        if self._is_retired and not self._is_lent:
            self._library.talweg_free(self._handle)

    def _check(self, status: int) -> None:
        if status == _EVENTS_LOST:
            raise EventsLost
        check(self._library, status)

    def _timeout(self, tensor: int, round_: int, names_whom: bool) -> errors.Timeout:
        text = last_error(self._library)
        who = self.waits_for(tensor, round_) if names_whom else ""
        return errors.Timeout(f"{text}; it still waits for {who}" if who else text)

    def _check_pushes(self) -> None:
        if self.refusal is not None:
            raise errors.NotSynchronized(self.refusal)

    def _check_names(self) -> None:
        """Raises the error of Python; the library's would name calls of talweg.h."""
        if self.is_standby:
            self._check_pushes()

    def _in_slices(self, call: Callable[[int], int], slice_ns: int = WAIT_SLICE_NS) -> None:
        """Repeats `call`, with a time limit, until it ends by itself. Python handles a signal, such
        as Ctrl-C, only between two calls.
        """
        while (status := call(slice_ns)) == TIMEOUT:
            self.attend()
        self._check(status)

    def _until(self, wait: Callable[[int], int], end: float | None) -> bool:
        """Whether `wait`, of nanoseconds, succeeds before time.monotonic() is `end`. Repeats it."""
        slice_ns = WAIT_SLICE_NS
        while True:
            if end is not None:
                left_ns = int((end - time.monotonic()) * 1e9)
                slice_ns = max(0, min(left_ns, WAIT_SLICE_NS))
            status = wait(slice_ns)
            if status == 0:
                return True
            if status != TIMEOUT:
                self._check(status)
            if end is not None and left_ns <= 0:
                return False
            self.attend()

    def close(self, timeout_s: float = 5.0) -> None:
        """Says goodbye. The memory stays until retire(): another thread may be in a call."""
        self._library.talweg_shutdown(self._handle, nanoseconds(timeout_s))

    def check_health(self) -> None:
        """Raises the reason if rounds cannot go on. Asks the agent's socket."""
        self._check(self._library.talweg_health(self._handle))

    def declare_all(
        self,
        declarations: Sequence[tuple[str, int, int, int, int, int]],
        on_gpu: bool = False,
        in_place: bool = False,
    ) -> list[int]:
        """Declares tensors: name, dtype, op, root rank, count and priority of each.

        Tensors that are pushed from GPUs get their events from gpu_place().
        """
        self._check_names()
        library = self._library
        declare_all = library.talweg_declare_all
        if on_gpu:
            declare_all = library.talweg_gpu_declare_all
        elif in_place:
            declare_all = library.talweg_declare_all_in_place
        tensors: list[int] = []
        for first in range(0, len(declarations), _DECLARED_AT_ONCE):
            tensors += self._declare(declare_all, declarations[first : first + _DECLARED_AT_ONCE])
        return tensors

    def _declare(
        self,
        declare_all: Callable[..., int],
        declarations: Sequence[tuple[str, int, int, int, int, int]],
    ) -> list[int]:
        count = len(declarations)
        array = (Declaration * count)(
            *(
                Declaration(
                    encode(name + self.view_suffix if op == _BROADCAST else name),
                    dtype,
                    op,
                    within("root_rank", root_rank, 0, 2**32 - 1),
                    checked_priority(priority),
                    within("count", element_count, 0, 2**64 - 1),
                )
                for name, dtype, op, root_rank, element_count, priority in declarations
            )
        )
        tensors = (_u32 * count)()
        # A later slice asks for all of them again, and gets at once what is agreed on by then.
        self._in_slices(
            lambda slice_ns: declare_all(self._handle, array, count, slice_ns, tensors),
            _DECLARE_SLICE_NS,
        )
        return list(tensors)

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
        """`shares`: what each rank gives and gets. `ranks`: the group; empty for all ranks."""
        if not side:
            self._check_names()
        collective = Collective(
            ctypes.sizeof(Collective),
            dtype,
            op,
            *shares,
            within("root_rank", root_rank, 0, 2**32 - 1),
            len(ranks),
            (_u32 * len(ranks))(*ranks),
            within("count", element_count, 0, 2**64 - 1),
            side,
            within("patience_ms", patience_ms, 0, 2**16 - 1),
            encoding,
        )
        if not side and (ranks or shares != (_WHOLE, _WHOLE)):
            name += self.view_suffix
        tensor, encoded, wire_priority = _u32(), encode(name), checked_priority(priority)
        declare = self._library.talweg_declare_collective
        self._in_slices(
            lambda slice_ns: declare(
                self._handle, encoded, collective, wire_priority, slice_ns, ctypes.byref(tensor)
            ),
            _DECLARE_SLICE_NS,
        )
        return tensor.value

    def push_parts(
        self,
        tensor: int,
        address: int | bytes,
        lengths: Sequence[int] | None,
        priority: int = 0,
        signature: int = 0,
    ) -> int:
        """Pushes parts and returns the round. `address` is where they lie, or their bytes.

        `lengths` are the bytes of each part that this rank gives; None: all are full. `signature`
        says what the round is of, and must be equal at all ranks; 0: this rank does not say.
        """
        self._check_pushes()
        round_ = _u64()
        parts = None if lengths is None else (_u64 * len(lengths))(*lengths)
        push_parts, wire_priority = self._library.talweg_push_parts, checked_priority(priority)
        self._in_slices(
            lambda slice_ns: push_parts(
                self._handle,
                tensor,
                address or None,
                parts,
                signature,
                wire_priority,
                slice_ns,
                ctypes.byref(round_),
            )
        )
        return round_.value

    def wait_parts(
        self, tensor: int, round_: int, out: int, out_bytes: int, end: float | None = None
    ) -> bool:
        """Waits, and copies the parts that this rank gets to `out`, one after another.

        False: time.monotonic() passed `end` before the round was over. The round stays open.
        """
        wait = self._library.talweg_wait_parts
        return self._until(
            lambda slice_ns: wait(self._handle, tensor, round_, out or None, out_bytes, slice_ns),
            end,
        )

    def scale(self, dtype: int, factor: float, source: int, out: int, count: int) -> None:
        """Multiplies each element at `source` by `factor`, and writes it to `out`."""
        self._check(self._library.talweg_scale(dtype, factor, source or None, out or None, count))

    def sums_in_place(self, tensor: int) -> bool:
        """Whether the tensor's result comes into its contribution buffer, without a copy."""
        return bool(self._library.talweg_sums_in_place(self._handle, tensor))

    def contribution(self, tensor: int) -> int:
        """Returns the address of the tensor's contribution buffer."""
        return int(self._library.talweg_contribution(self._handle, tensor))

    def attach(self, tensor: int, address: int) -> None:
        """Maps the tensor's buffer at `address` too. 0: the tensor is no longer attached."""
        self._check(self._library.talweg_attach(self._handle, tensor, address or None))

    def detach(self, tensor: int) -> None:
        """Keeps the tensor's last result where it is. Attached memory gets its own copy of the
        buffer. Without it the old buffer keeps the result, and the tensor's buffer moves.
        """
        self._check(self._library.talweg_detach(self._handle, tensor))

    def push_pull(self, tensor: int, address: int, priority: int) -> int:
        """Pushes the tensor; returns the round. `address` 0: it is in the contribution buffer."""
        self._check_pushes()
        round_ = _u64()
        push_pull, wire_priority = self._library.talweg_push_pull, checked_priority(priority)
        # A call waits only while the ring is full, and has pushed nothing then.
        self._in_slices(
            lambda slice_ns: push_pull(
                self._handle, tensor, address, wire_priority, slice_ns, ctypes.byref(round_)
            )
        )
        return round_.value

    def poll(self, tensor: int, round_: int) -> bool:
        status = self._library.talweg_poll(self._handle, tensor, round_)
        if status == _PENDING:
            return False
        if status == _EVENTS_LOST:
            raise EventsLost
        # A round that has failed is over too: synchronize() raises its error.
        return True

    def wait(self, tensor: int, round_: int, out: int, timeout_s: float | None) -> None:
        # Waits in slices, because Python handles a signal (Ctrl-C) only between calls. The end of a
        # slice wakes nobody: the round stays open, and bytes in `out` are not copied again.
        left_ns = nanoseconds(timeout_s)
        wait = self._library.talweg_wait
        while True:
            slice_ns = WAIT_SLICE_NS if left_ns < 0 else min(left_ns, WAIT_SLICE_NS)
            status = wait(self._handle, tensor, round_, out, slice_ns)
            wait = self._library.talweg_wait_again
            if left_ns >= 0:
                left_ns -= slice_ns
            if status != TIMEOUT:
                return self._check(status)
            if left_ns == 0:
                raise self._timeout(tensor, round_, bool(timeout_s))
            self.attend()

    def barrier(self, end: float | None = None) -> bool:
        """Returns False if time.monotonic() passes `end` before. The next call then goes on."""
        self._check_pushes()
        return self._until(lambda ns: self._library.talweg_barrier(self._handle, None, ns), end)

    # ----- A descriptor that tells of rounds -----

    @property
    def handle(self) -> int:
        """Returns the talweg_client's address, for kernels in other languages."""
        self._is_lent = True
        return int(self._handle.value or 0)

    def completion_fd(self) -> int:
        """Returns a new descriptor. It is readable when a round that it watches may be over, and
        when the client's health has ended. The client owns it, until the process ends.
        """
        fd = ctypes.c_int()
        another = self._library.talweg_another_completion_fd
        self._check(another(self._handle, ctypes.byref(fd)))
        return fd.value

    def watch(self, fd: int, tensor: int, round_: int, tag: int) -> None:
        """Makes completed(fd) return `tag` when the round, which was pushed, is over."""
        self._check(self._library.talweg_watch_by(self._handle, fd, tensor, round_, tag))

    def completed(self, fd: int, at_most: int = 64) -> list[int]:
        """Returns the tags of watched rounds that are over, each once. Does not wait.

        When the client's health has ended and all tags were returned, it raises the reason.
        """
        tags, count = (_u64 * at_most)(), ctypes.c_size_t()
        completed = self._library.talweg_completed_by
        self._check(completed(self._handle, fd, tags, at_most, ctypes.byref(count)))
        return tags[: count.value]

    def ranks_summed(self, tensor: int) -> int:
        """Returns how many ranks are in the result that was taken last."""
        return int(self._library.talweg_ranks_summed(self._handle, tensor))

    def waits_for(self, tensor: int, round_: int) -> str:
        """Returns a text that says whom the round waits for; empty if the agent knows nobody."""
        text = ctypes.create_string_buffer(_WAITS_BYTES)
        status = self._library.talweg_waits_for(
            self._handle, tensor, round_, text, len(text), _WAITS_NS
        )
        return "" if status else text.value.decode(errors="replace")

    # ----- Steps and membership: talweg.h and docs/elastic.md say what each call means. -----

    def end_step(self) -> None:
        """Ends a step. Returns when the rank may begin the next one."""
        self._in_slices(lambda slice_ns: self._library.talweg_end_step(self._handle, slice_ns))

    def ready(self) -> None:
        """Says that this rank can take part in steps as soon as its node is let in."""
        self._in_slices(lambda slice_ns: self._library.talweg_ready(self._handle, slice_ns))

    def steps_ended(self) -> int:
        return int(self._library.talweg_steps_ended(self._handle))

    def newest_epoch(self) -> int:
        return int(self._library.talweg_newest_epoch(self._handle))

    def membership(self, epoch: int = 0) -> tuple[Membership, list[Member]]:
        """Returns the view of that epoch (0: the newest), and its members in the order of nodes."""
        room = 64
        while True:
            found, members = Membership(ctypes.sizeof(Membership)), (Member * room)()
            self._check(
                self._library.talweg_get_membership(self._handle, epoch, found, members, room, -1)
            )
            if found.member_count <= room:
                return found, list(members[: found.member_count])
            room = found.member_count

    def follow(self, epoch: int) -> None:
        """Takes this rank's numbers from that view."""
        self._check(self._library.talweg_follow(self._handle, epoch, -1))
        self.rank = int(self._library.talweg_rank(self._handle))
        self.size = int(self._library.talweg_size(self._handle))
