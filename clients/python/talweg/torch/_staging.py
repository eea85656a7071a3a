# SPDX-License-Identifier: Apache-2.0
"""Brings the GPU tensors of a process group's calls to host memory, and results back."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from talweg._gpu import gpu
from talweg._gpu.staging import Pinned, Staging, Streams
from talweg.torch import _cuda


class Way(Protocol):
    """The way between one device and host memory, for one call."""

    def bring_down(
        self, source: torch.Tensor
    ) -> tuple[int, Any, Callable[[float | None], bool] | None]:
        """Copies a plain tensor to host memory.

        Returns the copy's address, an object to keep until the call is complete, and a function
        that tells whether the copy is done; None if it is done already.
        """

    def room(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns host memory for a result of so many elements."""

    def bring_up(self, tensors: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        """Copies the parts of room()'s memory to the tensors. Returns when they are there."""


class _OfPinned:
    """Copies through pinned memory, on Talweg's own streams."""

    def __init__(self, staging: Staging, streams: Streams) -> None:
        self._staging = staging
        self._streams = streams
        self._pinned: Pinned | None = None

    def bring_down(
        self, source: torch.Tensor
    ) -> tuple[int, Any, Callable[[float | None], bool] | None]:
        nbytes = source.numel() * source.element_size()
        if nbytes == 0:
            return 0, source, None
        copy = self._staging.copy_down(self._streams, source.data_ptr(), nbytes)
        return copy.address, (source, copy), copy.is_done

    def room(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        nothing = torch.empty(0, dtype=dtype, device="cpu")
        nbytes = count * nothing.element_size()
        if nbytes == 0:
            return nothing
        self._pinned = self._staging.room(self._streams.gpu, nbytes)
        memory = (ctypes.c_char * nbytes).from_address(self._pinned.address)
        return torch.frombuffer(memory, dtype=dtype)

    def bring_up(self, tensors: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        pinned, copies, offset = self._pinned, [], 0
        self._pinned = None
        for tensor, part in zip(tensors, parts):
            nbytes = part.numel() * part.element_size()
            if nbytes > 0 and pinned is not None:
                target = tensor
                if not _cuda.is_plain(tensor) or tensor.is_conj():
                    target = torch.empty_like(tensor, memory_format=torch.contiguous_format)
                copy = self._staging.copy_up(
                    self._streams, pinned, offset, target.data_ptr(), nbytes
                )
                copies.append((copy, tensor, target))
            offset += nbytes
        for copy, tensor, target in copies:
            copy.is_done(None)
            if target is not tensor:
                _cuda.copy(tensor, target)
                self._staging.settle(_cuda.place_of(tensor))


class _OfTorch:
    """Copies as torch does, and waits for the device. For machines without NVIDIA's driver."""

    def bring_down(
        self, source: torch.Tensor
    ) -> tuple[int, Any, Callable[[float | None], bool] | None]:
        copy = source.cpu()
        return copy.data_ptr(), copy, None

    def room(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device="cpu")

    def bring_up(self, tensors: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        for tensor, part in zip(tensors, parts):
            _cuda.copy(tensor, part.view(tensor.shape))


_lock = threading.Lock()
_staging: Staging | None = None  # The one Staging of this process.


def way_of(tensor: torch.Tensor) -> Way:
    """Returns the way for a call that gives the tensor, or whose result goes there.

    The call begins now, on the current stream.
    """
    global _staging
    driver = gpu.driver() if torch.version.hip is None else None
    if driver is None:
        return _OfTorch()
    with _lock:
        staging = _staging = _staging or Staging(driver)
    return _OfPinned(staging, staging.begin(_cuda.place_of(tensor)))
