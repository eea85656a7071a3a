# SPDX-License-Identifier: Apache-2.0
"""BytePS's keys for tensors' slices.

A key is the tensor's number times 65536, plus the number of the slice, which BytePS calls a
partition. Tensors are numbered in the order in which this rank has first pushed them.
"""

from __future__ import annotations

from talweg._declaration import Declaration

PARTITIONS = 1 << 16


class Keys:
    """The keys of one client's tensors."""

    def __init__(self, slice_bytes: int) -> None:
        self._slice_bytes = slice_bytes
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int | None:
        """Returns the tensor's number; None if this rank has pushed no tensor of that name."""
        return self._numbers.get(name)

    def add(self, name: str) -> bool:
        """Numbers the tensor if its name is new. Returns whether it is."""
        if name in self._numbers:
            return False
        self._numbers[name] = len(self._numbers)
        return True

    def of(self, name: str, declaration: Declaration) -> range:
        """Returns the keys of a tensor's slices. The tensor must have been added."""
        first = self._numbers[name] * PARTITIONS
        return range(first, first + 1 + max(declaration.nbytes - 1, 0) // self._slice_bytes)
