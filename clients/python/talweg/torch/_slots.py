# SPDX-License-Identifier: Apache-2.0
"""Sums the buckets of DistributedDataParallel, which the backend reduces again and again, where
they lie.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from talweg._client import Client, Declared
from talweg._collectives.kinds import NO_SLOT, WANTS_SLOT, Given
from talweg._declaration import Declaration
from talweg.errors import TalwegError
from talweg.torch._backward import current_node
from talweg.torch._buckets import Bucket, may_be_in_place, may_be_moved

# How many slots a group has at most. A slot takes memory until the job ends.
_SLOTS_MAX = 64
# How many tensors that have come once the group remembers.
_SEEN_MAX = 256


def is_reducer() -> bool:
    """Whether DistributedDataParallel's reducer makes the call.

    It does if there is no Python code between autograd's engine and the group's method. That method
    calls this one by way of one other function. Tensors of other callers are not moved, because
    torch cannot resize a tensor that it has moved into shared memory.
    """
    if current_node() is None:
        return False
    frame = sys._getframe(2).f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.autograd")


@dataclass
class _Slot:
    name: str
    declaration: Declaration
    key: Any  # The _key() of this rank's tensor; None if no tensor has the slot.
    storage: Any = None  # The storage that the buffer is attached at, if it is.
    declared: Declared | None = None


class TensorSlots:
    """The slots of a group of all ranks of a job on one node: talweg._collectives.kinds.Slots.

    A tensor wants a slot when it comes for the second time at the same address. If its storage can
    be moved into shared memory, the slot's buffer is attached there, and a round copies nothing.
    Otherwise the tensor is copied in and out, as without a slot. The slot gives a tensor up that
    nobody else has any more, and its memory becomes free.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._slots: list[_Slot] = []
        self._numbers: dict[Any, int] = {}
        # The slots that may be given once more. They are the same at all ranks.
        self._left: list[int] = []
        self._seen: set[Any] = set()

    def number_of(self, given: Given) -> int:
        """Returns the slot of this rank's tensor, or WANTS_SLOT or NO_SLOT."""
        tensor = given.keep
        if not isinstance(tensor, torch.Tensor) or not may_be_in_place(tensor):
            return NO_SLOT
        key = _key(given)
        number = self._numbers.get(key)
        if number is not None:
            return number
        if key not in self._seen:
            if len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
            self._seen.add(key)
            return NO_SLOT
        self._let_go()
        is_worth_it = len(self._slots) - len(self._left) < _SLOTS_MAX
        is_worth_it = is_worth_it and may_be_moved(tensor, self._client.local_size)
        return WANTS_SLOT if is_worth_it else NO_SLOT

    def agree(self, given: Given) -> None:
        """Gives the next slot to the call's tensor.

        If that fails, this rank has no tensor in the slot. The other ranks learn that when they
        bring theirs.
        """
        tensor = given.keep
        declaration = Declaration(given.dtype, tensor.numel(), given.op, 0)
        number = self._next(declaration)
        slot = self._slots[number - 1]
        name = slot.name
        try:
            buffer = self._declared(slot).buffer
        except TalwegError:
            return
        is_attached = buffer is not None and Bucket(self._client, name).attach(tensor, buffer)
        if is_attached:
            slot.storage = tensor.untyped_storage()
        # If the tensor was moved, its address is a new one.
        slot.key = (tensor.data_ptr(), *_key(given)[1:])
        self._numbers[slot.key] = number

    def _next(self, declaration: Declaration) -> int:
        """Returns the slot of the next tensor: a left one of the same declaration, or a new one."""
        for number in self._left:
            if self._slots[number - 1].declaration == declaration:
                self._left.remove(number)
                return number
        number = len(self._slots) + 1
        self._slots.append(_Slot(f"{self._name}.slot.{number}", declaration, None))
        return number

    def begin_again(self) -> None:
        for number in range(1, len(self._slots) + 1):
            self.retire(number)
        self._left = list(range(1, len(self._slots) + 1))
        self._seen.clear()

    def _declared(self, slot: _Slot) -> Declared:
        if slot.declared is None:
            tensors = self._client.tensors
            slot.declared = tensors.declare(slot.name, slot.declaration, in_place=True)
        return slot.declared

    def tensor(self, number: int) -> int:
        """Returns the number of the slot's tensor in the library."""
        return self._declared(self._slots[number - 1]).tensor

    def push(self, number: int, given: Given) -> tuple[int, bool]:
        """Pushes the tensor. Copies nothing if the buffer is attached where the tensor lies."""
        slot, connection = self._slots[number - 1], self._client.connection
        declared, lengths = self._declared(slot), [slot.declaration.nbytes]
        buffer = declared.buffer
        if buffer is not None and buffer.is_attached_to(given.address):
            return connection.push_parts(declared.tensor, 0, lengths), True
        if buffer is not None:
            buffer.give_back()
            slot.storage = None
        return connection.push_parts(declared.tensor, given.address, lengths), False

    def retire(self, number: int) -> None:
        """Takes the slot from its tensor, which is copied from now on, or gets another slot."""
        slot = self._slots[number - 1]
        if slot.declared is not None and slot.declared.buffer is not None:
            slot.declared.buffer.give_back()
        self._numbers.pop(slot.key, None)
        slot.key = slot.storage = None

    def _let_go(self) -> None:
        """Retires the slots whose tensors nobody else has."""
        for number, slot in enumerate(self._slots, 1):
            if slot.storage is not None and _is_only_ours(slot.storage):
                self.retire(number)


def _key(given: Given) -> tuple[Any, ...]:
    return (given.address, given.keep.numel(), given.dtype, given.op)


def _is_only_ours(storage: Any) -> bool:
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    return use_count is not None and use_count(storage._cdata) <= 1
