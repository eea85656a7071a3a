# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel's buckets that the backend reduces again and again: where the node's
ranks sum, each bucket is summed where it lies.
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

# A slot takes memory until the job's end.
_SLOTS_MAX = 64
# How many tensors are remembered that have come once.
_SEEN_MAX = 256


def is_reducer() -> bool:
    """Whether DistributedDataParallel's reducer makes the call: there is no Python code between
    autograd's engine and the method of the group, which asks by way of one other function. Tensors
    of other callers stay where they are, since torch cannot resize what it has moved into shared
    memory.
    """
    if current_node() is None:
        return False
    frame = sys._getframe(2).f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.autograd")


@dataclass
class _Slot:
    name: str
    declaration: Declaration
    key: Any  # What this rank's tensor is; None: nobody has the slot any more.
    storage: Any = None  # Where the buffer stands, if it does.
    declared: Declared | None = None


class TensorSlots:
    """The slots of a group that is all ranks of one node: talweg._kinds.Slots.

    A tensor wants a slot when it comes for the second time at the same address. Where its storage
    can be moved into shared memory the slot's buffer stands there, and a round copies nothing.
    Otherwise the tensor is copied in and out, as without a slot. A tensor that nobody but the slot
    has any more gets its memory back.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._slots: list[_Slot] = []
        self._numbers: dict[Any, int] = {}
        self._left: list[int] = []  # Slots that may be given once more: alike at all ranks.
        self._seen: set[Any] = set()

    def number_of(self, given: Given) -> int:
        """By this rank's own tensors."""
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
        """The next number is the tensor's. A rank where that fails has no tensor for it, which the
        others hear when they bring theirs.
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
        # It lies elsewhere if it was moved.
        slot.key = (tensor.data_ptr(), *_key(given)[1:])
        self._numbers[slot.key] = number

    def _next(self, declaration: Declaration) -> int:
        """The slot that the next tensor gets: an earlier one of its kind, or a new one."""
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
            tensors.declare_all([(slot.name, slot.declaration, 0)], in_place=True)
            slot.declared = tensors.declare(slot.name, slot.declaration)
        return slot.declared

    def tensor(self, number: int) -> int:
        """The native one."""
        return self._declared(self._slots[number - 1]).tensor

    def push(self, number: int, given: Given) -> tuple[int, bool]:
        """Copies nothing where the buffer stands at the tensor."""
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
        """Its tensor is copied from now on, unless it comes to another slot."""
        slot = self._slots[number - 1]
        if slot.declared is not None and slot.declared.buffer is not None:
            slot.declared.buffer.give_back()
        self._numbers.pop(slot.key, None)
        slot.key = slot.storage = None

    def _let_go(self) -> None:
        """Retires the slots of tensors that nobody else has."""
        for number, slot in enumerate(self._slots, 1):
            if slot.storage is not None and _is_only_ours(slot.storage):
                self.retire(number)


def _key(given: Given) -> tuple[Any, ...]:
    return (given.address, given.keep.numel(), given.dtype, given.op)


def _is_only_ours(storage: Any) -> bool:
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    return use_count is not None and use_count(storage._cdata) <= 1
