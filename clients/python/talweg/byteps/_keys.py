# SPDX-License-Identifier: Apache-2.0
"""BytePS's keys: a tensor's number, in the order in which this rank has first pushed them, times
65536, plus the number of a partition, which is a slice here."""

from __future__ import annotations

from talweg._declaration import Declaration

PARTITIONS = 1 << 16


class Keys:
    """Those of one client's tensors."""

    def __init__(self, slice_bytes: int) -> None:
        self._slice_bytes = slice_bytes
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int | None:
        """None: nobody has pushed a tensor of this name."""
        return self._numbers.get(name)

    def add(self, name: str) -> bool:
        """Whether the name is new."""
        if name in self._numbers:
            return False
        self._numbers[name] = len(self._numbers)
        return True

    def of(self, name: str, declaration: Declaration) -> range:
        """The keys of the slices of a tensor that has been added."""
        first = self._numbers[name] * PARTITIONS
        return range(first, first + 1 + max(declaration.nbytes - 1, 0) // self._slice_bytes)
