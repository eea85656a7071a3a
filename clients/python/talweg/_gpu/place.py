# SPDX-License-Identifier: Apache-2.0
"""Says where a tensor on a GPU lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A contiguous tensor on a GPU."""

    gpu: int  # The GPU's ordinal in this process.
    address: int
    nbytes: int
    stream: Callable[[], int]  # Returns the framework's current stream on that GPU.

    @property
    def end(self) -> int:
        return self.address + self.nbytes
