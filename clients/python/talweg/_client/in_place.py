# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors that the node's ranks sum in place (talweg_declare_all_in_place)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from talweg._library import native


class Buffer:
    """Where a tensor's contribution lies from its push on, and its result after its wait.

    A framework's tensor over `memory` keeps that object alive. So its references tell whether
    anybody still has the last result, which the next contribution would overwrite.
    """

    def __init__(self, connection: native.Connection, tensor: int, nbytes: int) -> None:
        self._connection = connection
        self._tensor = tensor
        self._nbytes = nbytes
        # Whether results may be given out as they lie here.
        self.gives_views = True
        # Another place where it stands, and whether that is still the same mapping.
        self._place = 0
        self._is_there: Callable[[], bool] = lambda: False
        self._find()

    def _find(self) -> None:
        self.address = self._connection.contribution(self._tensor)
        memory: Any = (ctypes.c_char * self._nbytes).from_address(self.address)
        memory.owner = self._connection  # It is unmapped with the connection.
        self.memory = memory
        del memory  # References to it are counted.
        self._unshared = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self.memory)

    def attach(self, address: int, is_there: Callable[[], bool]) -> None:
        """Has it stand at `address` as well: what is there is the next contribution.

        `is_there` tells whether the mapping at `address` is still its owner's. It is asked before
        that is given back, which claim() does.
        """
        self._connection.attach(self._tensor, address)
        self._place, self._is_there = address, is_there

    def is_attached_to(self, address: int) -> bool:
        """Whether contributions and results are to be found there."""
        return self._place == address and self._is_there()

    def give_back(self) -> None:
        """The place that it is attached to gets its own memory back, with the last result."""
        if self._place == 0:
            return
        if self._is_there():
            self._connection.detach(self._tensor)
        else:
            self._connection.attach(self._tensor, 0)
        self._place = 0

    def claim(self) -> None:
        """Makes it free for the next contribution.

        Who still has the last result keeps it: at the place that it is attached to; or in that
        memory, which is no buffer any more and stays until the process ends, so that results are
        copied out from then on.
        """
        self.give_back()
        if self._references() == self._unshared:
            return
        self._connection.detach(self._tensor)
        self._find()
        self.gives_views = False
