# SPDX-License-Identifier: Apache-2.0
"""The calls of talweg_gpu.h: tensors on GPUs. docs/gpu.md says what each call means."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from talweg._library.native_arguments import checked_priority
from talweg._library.native_structures import Declaration

_client_p = ctypes.c_void_p
_i32, _u32, _i64, _u64 = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64

_HANDLE_BYTES = 64

# name: (result, arguments), as in talweg_gpu.h.
PROTOTYPES = {
    "talweg_gpu_export": (
        ctypes.c_int,
        [
            _client_p,
            ctypes.c_char_p,
            _u64,
            ctypes.c_char_p,
            _i64,
            ctypes.POINTER(_u32),
            ctypes.POINTER(_u64),
        ],
    ),
    "talweg_gpu_unexport": (ctypes.c_int, [_client_p, _u32, _i64]),
    "talweg_gpu_declare_all": (
        ctypes.c_int,
        [_client_p, ctypes.POINTER(Declaration), ctypes.c_size_t, _i64, ctypes.POINTER(_u32)],
    ),
    "talweg_gpu_place_signed": (
        ctypes.c_int,
        [_client_p, _u32, _u32, _u64, ctypes.c_char_p, ctypes.c_char_p, _i64],
    ),
    "talweg_gpu_push_pull": (
        ctypes.c_int,
        [_client_p, _u32, _u32, _u64, _i32, _i64, ctypes.POINTER(_u64)],
    ),
}


class GpuCalls:
    """A Connection's calls of talweg_gpu.h."""

    _handle: Any
    _library: Any
    _check: Callable[[int], None]
    _check_pushes: Callable[[], None]
    _in_slices: Callable[..., None]

    def gpu_export(self, uuid: bytes, buffer_id: int, handle: bytes) -> tuple[int, int]:
        """Returns the agent's number for an allocation, and how many bytes it has mapped."""
        buffer, nbytes = _u32(), _u64()
        self._check(
            self._library.talweg_gpu_export(
                self._handle,
                uuid,
                buffer_id,
                handle,
                -1,
                ctypes.byref(buffer),
                ctypes.byref(nbytes),
            )
        )
        return buffer.value, nbytes.value

    def gpu_unexport(self, buffer: int) -> None:
        self._check(self._library.talweg_gpu_unexport(self._handle, buffer, -1))

    def gpu_place(self, tensor: int, buffer: int, signature: int) -> tuple[bytes, bytes]:
        """Returns the handles of the tensor's events `pushed` and `taken`; the events may be new.

        Each round that is pushed from then on has this `signature`.
        """
        pushed = ctypes.create_string_buffer(_HANDLE_BYTES)
        taken = ctypes.create_string_buffer(_HANDLE_BYTES)
        place = self._library.talweg_gpu_place_signed
        self._check(place(self._handle, tensor, buffer, signature, pushed, taken, -1))
        return pushed.raw, taken.raw

    def gpu_push_pull(self, tensor: int, buffer: int, offset: int, priority: int) -> int:
        self._check_pushes()
        round_ = _u64()
        push_pull, wire_priority = self._library.talweg_gpu_push_pull, checked_priority(priority)
        self._in_slices(
            lambda slice_ns: push_pull(
                self._handle, tensor, buffer, offset, wire_priority, slice_ns, ctypes.byref(round_)
            )
        )
        return round_.value
