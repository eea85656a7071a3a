# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors that the node's ranks sum in place (talweg_declare_all_in_place)."""

from __future__ import annotations

import ctypes
import sys

from talweg import _native


class Buffer:
    """Where a tensor's contribution lies from its push on, and its result after its wait.

    A framework's tensor over `memory` keeps that object alive. So its references tell whether
    anybody still has the last result, which the next contribution would overwrite.
    """

    def __init__(self, connection: _native.Connection, tensor: int, nbytes: int) -> None:
        self._connection = connection
        self._tensor = tensor
        self._nbytes = nbytes
        # Whether results may be given out as they lie here.
        self.gives_views = True
        self._find()

    def _find(self) -> None:
        self.address = self._connection.contribution(self._tensor)
        self.memory = (ctypes.c_char * self._nbytes).from_address(self.address)
        self._unshared = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self.memory)

    def claim(self) -> None:
        """Makes it free for the next contribution.

        Who still has the last result keeps it, in that memory, which is no buffer any more. It
        stays until the process ends, so results are copied out from then on.
        """
        if self._references() == self._unshared:
            return
        self._connection.detach(self._tensor)
        self._find()
        self.gives_views = False
