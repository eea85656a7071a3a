# SPDX-License-Identifier: Apache-2.0
"""What a State offers, if a joiner can catch up with it in steps: docs/elastic.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True)
class Call:
    """What one call of the optimizer applies, as one rank keeps it for others."""

    header: bytes  # What is small, and the same at all ranks.
    total: int  # Bytes of all that is large.
    stripe: np.ndarray  # This rank's part of them.


class Snapshot(NamedTuple):
    """What steps change."""

    header: bytes
    buffers: list[np.ndarray]  # Where they lie.
    # The first so many stay as they are until the next call of the optimizer.
    steady: int


class Recording(Protocol):
    """What the optimizer applies from now on."""

    # Why it could not be recorded; None: it was.
    problem: str | None

    def take(self) -> list[Call]:
        """The calls since the last time."""

    def close(self) -> None:
        """Nothing is recorded any more."""


class Replay(Protocol):
    """One State's. Survivors take the upper ones, a joiner the lower ones."""

    def problem(self) -> str | None:
        """Why steps of this State cannot be replayed; None: they can."""

    def snapshot(self) -> Snapshot:
        """What steps change. The same at all survivors."""

    def nbytes(self) -> int:
        """About how many bytes those buffers have."""

    def record(self, place: int, count: int, before: Callable[[], None]) -> Recording:
        """Keeps this stripe, of so many, of what is applied. `before` is called whenever the buffers
        of a snapshot are about to be changed.
        """

    def rest(self) -> Sequence[bytes | memoryview]:
        """All else that the State has."""

    def load(self, header: bytes, buffers: list[np.ndarray]) -> None:
        """Takes a snapshot over."""

    def apply(self, header: bytes, data: np.ndarray) -> None:
        """Makes a call with what is large, whole."""

    def load_rest(self, payload: memoryview) -> None:
        """Takes the rest over."""
