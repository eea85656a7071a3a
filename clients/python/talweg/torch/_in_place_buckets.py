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
from talweg._collectives.kinds import NOT_IN_PLACE, WANTS_IN_PLACE, Given
from talweg._declaration import Declaration
from talweg.errors import TalwegError
from talweg.torch._backward import current_node
from talweg.torch._buckets import Bucket, may_be_in_place, may_be_moved

# How many in-place tensors a group has at most. One takes memory until the job ends.
_TENSORS_MAX = 64
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
class _InPlaceTensor:
    name: str
    declaration: Declaration
    key: Any  # The _key() of this rank's tensor; None: no tensor of it has this one.
    storage: Any = None  # The storage that the buffer is attached at, if it is.
    declared: Declared | None = None


class InPlaceBuckets:
    """The in-place tensors (talweg._collectives.kinds.InPlaceTensors) of a group of all ranks of a
    job on one node.

    A bucket wants one when it comes for the second time at the same address. If its storage can be
    moved into shared memory, the in-place tensor's buffer is attached there, and a round copies
    nothing. Otherwise the bucket is copied in and out, as without one. A bucket that nobody else
    has any more is given up, and its memory becomes free.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._tensors: list[_InPlaceTensor] = []
        self._numbers: dict[Any, int] = {}
        # Those that may be given once more, by number. They are the same at all ranks.
        self._left: list[int] = []
        self._seen: set[Any] = set()

    def number_of(self, given: Given) -> int:
        """Returns the number of the bucket's in-place tensor, or WANTS_IN_PLACE or NOT_IN_PLACE."""
        tensor = given.keep
        if not isinstance(tensor, torch.Tensor) or not may_be_in_place(tensor):
            return NOT_IN_PLACE
        key = _key(given)
        number = self._numbers.get(key)
        if number is not None:
            return number
        if key not in self._seen:
            if len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
            self._seen.add(key)
            return NOT_IN_PLACE
        self._let_go()
        is_worth_it = len(self._tensors) - len(self._left) < _TENSORS_MAX
        is_worth_it = is_worth_it and may_be_moved(tensor, self._client.local_size)
        return WANTS_IN_PLACE if is_worth_it else NOT_IN_PLACE

    def agree(self, given: Given) -> None:
        """Gives the next in-place tensor to the call's bucket.

        If that fails, no bucket of this rank has it. The other ranks learn that when they bring
        theirs.
        """
        tensor = given.keep
        declaration = Declaration(given.dtype, tensor.numel(), given.op, 0)
        number = self._next(declaration)
        target = self._tensors[number - 1]
        name = target.name
        try:
            buffer = self._declared(target).buffer
        except TalwegError:
            return
        is_attached = buffer is not None and Bucket(self._client, name).attach(tensor, buffer)
        if is_attached:
            target.storage = tensor.untyped_storage()
        # If the tensor was moved, its address is a new one.
        target.key = (tensor.data_ptr(), *_key(given)[1:])
        self._numbers[target.key] = number

    def _next(self, declaration: Declaration) -> int:
        """Returns the next number: of a left tensor of the same declaration, or of a new one."""
        for number in self._left:
            if self._tensors[number - 1].declaration == declaration:
                self._left.remove(number)
                return number
        number = len(self._tensors) + 1
        self._tensors.append(_InPlaceTensor(f"{self._name}.in_place.{number}", declaration, None))
        return number

    def begin_again(self) -> None:
        for number in range(1, len(self._tensors) + 1):
            self.retire(number)
        self._left = list(range(1, len(self._tensors) + 1))
        self._seen.clear()

    def _declared(self, target: _InPlaceTensor) -> Declared:
        if target.declared is None:
            tensors = self._client.tensors
            target.declared = tensors.declare(target.name, target.declaration, in_place=True)
        return target.declared

    def tensor(self, number: int) -> int:
        """Returns the number that the library has given to it."""
        return self._declared(self._tensors[number - 1]).tensor

    def push(self, number: int, given: Given) -> tuple[int, bool]:
        """Pushes the bucket. Copies nothing if the buffer is attached where the bucket lies."""
        target, connection = self._tensors[number - 1], self._client.connection
        declared, lengths = self._declared(target), [target.declaration.nbytes]
        buffer = declared.buffer
        if buffer is not None and buffer.is_attached_to(given.address):
            return connection.push_parts(declared.tensor, 0, lengths), True
        if buffer is not None:
            buffer.give_back()
            target.storage = None
        return connection.push_parts(declared.tensor, given.address, lengths), False

    def retire(self, number: int) -> None:
        """Takes it from its bucket, which is copied from now on, or gets another one."""
        target = self._tensors[number - 1]
        if target.declared is not None and target.declared.buffer is not None:
            target.declared.buffer.give_back()
        self._numbers.pop(target.key, None)
        target.key = target.storage = None

    def _let_go(self) -> None:
        """Retires those whose buckets nobody else has."""
        for number, target in enumerate(self._tensors, 1):
            if target.storage is not None and _is_only_ours(target.storage):
                self.retire(number)


def _key(given: Given) -> tuple[Any, ...]:
    return (given.address, given.keep.numel(), given.dtype, given.op)


def _is_only_ours(storage: Any) -> bool:
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    return use_count is not None and use_count(storage._cdata) <= 1
