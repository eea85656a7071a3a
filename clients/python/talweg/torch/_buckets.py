# SPDX-License-Identifier: Apache-2.0
"""Sums DistributedDataParallel's buckets where they lie."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from talweg._client import Client, Declared, Handle
from talweg._client.in_place import Buffer
from talweg._declaration import Op
from talweg.errors import TalwegError
from talweg.torch._in_place import is_worth_it
from talweg.torch._tensors import declaration_of, start

# How often a bucket is moved to new memory. After that its averages are always copied.
_PLACES_MAX = 2
# Marks a storage that torch has moved into shared memory for us, and for nobody else.
_OURS = "_talweg_moved"
_SHARED_MEMORY = "/dev/shm"


class Bucket:
    """The tensor of one name.

    If the node's ranks sum in place, the bucket moves into memory that they share: torch moves the
    storage into a mapping of its own, and the tensor's buffer is attached there. Then a round copies
    nothing. DDP keeps a bucket's memory from its second step on, so a bucket is moved when it comes
    a second time.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._last_address = 0
        self._places_left = _PLACES_MAX

    def start(self, tensor: torch.Tensor, priority: int, signature: int = 0) -> Handle:
        """Starts the average of `tensor`, in place. finish() returns the tensor.

        The round fails with Mismatch if ranks give different signatures. A tensor on a GPU has no
        signature.
        """
        client = self._client
        if not _is_plain(tensor):
            return start(client, tensor, tensor, Op.AVERAGE, self._name, priority, says_shape=False)
        declared = self._declare(tensor, priority)
        declared.signature = signature
        buffer = declared.buffer
        if buffer is not None and self._stands_at(tensor, buffer):
            return client.push_declared(declared, buffer.address, 0, priority, tensor, tensor)
        address = tensor.data_ptr()
        return client.push_declared(declared, address, address, priority, tensor, tensor)

    def _declare(self, tensor: torch.Tensor, priority: int) -> Declared:
        declared = self._client.tensors.declared_on_host(self._name)
        if declared is None:
            declaration = declaration_of(tensor, Op.AVERAGE)
            self._client.check_push(declaration)
            declared = self._client.tensors.declare(
                self._name, declaration, priority, in_place=may_be_in_place(tensor)
            )
        return declared

    def _stands_at(self, tensor: torch.Tensor, buffer: Buffer) -> bool:
        address = tensor.data_ptr()
        if buffer.is_attached_to(address):
            return True
        has_come_before = address == self._last_address
        self._last_address = address
        return has_come_before and self._places_left > 0 and self.attach(tensor, buffer)

    def attach(self, tensor: torch.Tensor, buffer: Buffer) -> bool:
        """Attaches the buffer where the tensor lies. Returns False if that is not possible."""
        storage = tensor.untyped_storage()
        if not may_be_moved(tensor, self._client.local_size):
            return False
        self._places_left -= 1
        try:
            buffer.give_back()
            storage.share_memory_()
            setattr(storage, _OURS, True)
            address = storage.data_ptr()
            # The lambda keeps the storage alive, so nothing else gets that address.
            buffer.attach(address, lambda: storage.data_ptr() == address)
        except (TalwegError, OSError, RuntimeError):
            return False
        self._watch(storage, buffer)
        return True

    def _watch(self, storage: Any, buffer: Buffer) -> None:
        # close() empties it, because the storage must not keep the memory of a closed client.
        attached = [buffer]

        def share() -> Any:
            # torch calls it to share the storage with another process, which maps torch's file.
            for each in attached:
                each.give_back()
            setattr(storage, _OURS, False)
            return type(storage)._share_fd_cpu_(storage)

        storage._share_fd_cpu_ = share

        def close() -> None:
            with contextlib.suppress(TalwegError):  # The buffer then stays, and nobody else has it.
                attached.pop().give_back()

        self._client.call_when_closed(close)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in host memory, and its bytes can be pushed as they lie."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_complex()
        and not tensor.is_neg()
        and tensor.numel() > 0
    )


def may_be_in_place(tensor: torch.Tensor) -> bool:
    """Whether ranks may sum the tensor in place. All ranks get the same answer."""
    return tensor.is_cpu and tensor.layout is torch.strided and is_worth_it(tensor)


def may_be_moved(tensor: torch.Tensor, local_size: int) -> bool:
    """Whether torch may move the tensor's storage into shared memory."""
    storage = tensor.untyped_storage()
    nbytes = tensor.numel() * tensor.element_size()
    return (
        tensor.is_contiguous()
        and storage.nbytes() == nbytes
        # _watch() needs one object for the storage. (Before torch 2.1 each call makes a new one.)
        and tensor.untyped_storage() is storage
        and torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
        and (getattr(storage, _OURS, False) or not storage.is_shared())
        # Nobody else has the storage's address. A NumPy array over it would.
        and getattr(storage, "resizable", lambda: False)()
        and _has_room(2 * local_size * nbytes)
    )


def _has_room(nbytes: int) -> bool:
    """Whether shared memory has room for so many bytes. Without it SIGBUS would end the rank."""
    try:
        free = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize >= nbytes
