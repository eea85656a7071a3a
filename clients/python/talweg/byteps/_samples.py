# SPDX-License-Identifier: Apache-2.0
"""BYTEPS_DEBUG_SAMPLE_TENSOR: logs the first and the last element of a slice.

It logs them when the slice is pushed and when its result is taken. It also logs each tensor's keys
(_keys.py) when the tensor is first pushed.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np

from talweg._client import Client, Declared, Handle
from talweg._declaration import Declaration, DType
from talweg.byteps._keys import PARTITIONS, Keys

_NUMPY = {
    DType.F32: np.float32,
    DType.F64: np.float64,
    DType.F16: np.float16,
    DType.BF16: np.uint16,  # NumPy has no bf16. Its bits are the upper half of an f32.
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.I16: np.int16,
    DType.U16: np.uint16,
    DType.I32: np.int32,
    DType.U32: np.uint32,
    DType.I64: np.int64,
    DType.U64: np.uint64,
    DType.BOOL: np.bool_,
}


def parse_key(text: str) -> int:
    """Returns the key of a decimal number, or of a hexadecimal one that begins with 0x."""
    return int(text, 16 if text[:2] in ("0x", "0X") else 10)


def _element(declaration: Declaration, address: int, index: int) -> str:
    dtype = DType(declaration.dtype)
    place = address + index * dtype.nbytes
    [value] = np.frombuffer(ctypes.string_at(place, dtype.nbytes), _NUMPY[dtype])
    if dtype is DType.BF16:
        [value] = np.array([int(value) << 16], np.uint32).view(np.float32)
    return f"{value:g}" if isinstance(value, np.floating) else str(value)


class Samples:
    """Logs the elements of one tensor's slice, during one life of the client."""

    def __init__(self, client: Client, key: int, slice_bytes: int, log: logging.Logger) -> None:
        self._client = client
        self._key = key
        self._tensor, self._slice = divmod(key, PARTITIONS)
        self._slice_bytes = slice_bytes
        self._log = log
        self._keys = Keys(slice_bytes)
        # The declaration of the sampled tensor, when it has been pushed.
        self._declaration: Declaration | None = None
        self._pushed = ""
        client.push_watchers.append(self._on_push)
        client.watchers.append(self._on_result)

    def _on_push(self, declared: Declared, address: int) -> None:
        name, declaration = declared.name, declared.declaration
        if self._keys.add(name):
            keys = self._keys.of(name, declaration)
            self._log.debug("tensor '%s' has the keys %d to %d", name, keys[0], keys[-1])
        if self._keys.number(name) != self._tensor or address == 0:
            return
        self._declaration = declaration
        ends = self._ends(address)
        if ends is not None:
            self._pushed = f"input[0]={ends[0]}\tinput[-1]={ends[1]}"
            self._say(ends, "PUSH")

    def _on_result(self, handle: Handle) -> None:
        if self._declaration is None or self._keys.number(handle.name) != self._tensor:
            return
        ends = self._ends(handle.out_address or _address_of(handle.result))
        if ends is not None and self._pushed:
            self._say(ends, "PULL")

    def _ends(self, address: int) -> tuple[str, str] | None:
        """Returns the first and the last element of the slice; None if the tensor has no such slice
        or no address.
        """
        assert self._declaration is not None
        width = DType(self._declaration.dtype).nbytes
        begin = self._slice * self._slice_bytes // width
        end = min(begin + self._slice_bytes // width, self._declaration.count)
        if address == 0 or begin >= end:
            return None
        first = _element(self._declaration, address, begin)
        return first, _element(self._declaration, address, end - 1)

    def _say(self, output: tuple[str, str], stage: str) -> None:
        self._log.debug(
            "Sampled key=%d\trank=%d\t%s\toutput[0]=%s\toutput[-1]=%s\tafter stage: %s",
            self._key,
            self._client.local_rank,
            self._pushed,
            *output,
            stage,
        )


def _address_of(result: Any) -> int:
    """Returns a result's address; 0 if its elements do not lie in their order in host memory."""
    if isinstance(result, np.ndarray):
        return result.ctypes.data if result.flags.c_contiguous else 0
    is_plain = getattr(result, "is_cpu", False) and result.is_contiguous()
    return int(result.data_ptr()) if is_plain else 0
