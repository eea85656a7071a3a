# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors that the node's ranks sum in place (talweg_declare_all_in_place)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from talweg._library import native


class Buffer:
    """The place of a tensor's contribution from its push on, and of its result after its wait.

    A framework's tensor over `memory` keeps that object alive. So the number of references tells
    whether anybody still has the last result, which the next contribution would overwrite.
    """

    def __init__(self, connection: native.Connection, tensor: int, nbytes: int) -> None:
        self._connection = connection
        self._tensor = tensor
        self._nbytes = nbytes
        # Whether results may be given to callers without a copy.
        self.gives_views = True
        # The other address that the buffer is attached to, and whether that is still the same
        # mapping.
        self._place = 0
        self._is_there: Callable[[], bool] = lambda: False
        self._find()

    def _find(self) -> None:
        self.address = self._connection.contribution(self._tensor)
        memory: Any = (ctypes.c_char * self._nbytes).from_address(self.address)
        memory.owner = self._connection  # The memory is unmapped with the connection.
        self.memory = memory
        del memory  # The references to `memory` are counted.
        self._unshared = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self.memory)

    def attach(self, address: int, is_there: Callable[[], bool]) -> None:
        """Maps the buffer at `address` as well: the data there is the next contribution.

        `is_there` tells whether the mapping at `address` still belongs to its owner. It is called
        before the address is used or given back.
        """
        self._connection.attach(self._tensor, address)
        self._place, self._is_there = address, is_there

    def is_attached_to(self, address: int) -> bool:
        """Whether contributions and results lie at `address`."""
        return self._place == address and self._is_there()

    def give_back(self) -> None:
        """Gives the attached address its own memory back, with the last result in it."""
        if self._place == 0:
            return
        if self._is_there():
            self._connection.detach(self._tensor)
        else:
            self._connection.attach(self._tensor, 0)
        self._place = 0

    def claim(self) -> None:
        """Makes the buffer free for the next contribution.

        Whoever still has the last result keeps it. At the attached address it stays in that
        address's own memory. Otherwise the old memory is no longer a buffer and stays until the
        process ends; from then on results are copied out.
        """
        self.give_back()
        if self._references() == self._unshared:
            return
        self._connection.detach(self._tensor)
        self._find()
        self.gives_views = False
