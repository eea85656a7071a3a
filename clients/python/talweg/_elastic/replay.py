# SPDX-License-Identifier: Apache-2.0
"""The protocols of a State that a joiner can catch up with in steps: docs/elastic.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True)
class Call:
    """The data that one call of the optimizer applies, as one rank keeps them for others."""

    header: bytes  # The small part. The first stripe's counts, so the others' may be empty.
    total: int  # The bytes of the large part.
    stripe: np.ndarray  # This rank's stripe of the large part.


class Snapshot(NamedTuple):
    """The part of the state that steps change."""

    header: bytes
    buffers: list[np.ndarray]  # The memory itself, not a copy.
    # The first `steady` buffers stay as they are until the next call of the optimizer.
    steady: int


class Recording(Protocol):
    """A record of what the optimizer applies, from the call of record() on."""

    # Why it could not be recorded; None: it was.
    problem: str | None

    def take(self) -> list[Call]:
        """Returns the calls since the last take()."""

    def close(self) -> None:
        """Ends the recording."""


class Replay(Protocol):
    """The replay of one State. Survivors call the methods up to rest(), joiners those after it."""

    def problem(self) -> str | None:
        """Returns why steps of this State cannot be replayed; None if they can."""

    def snapshot(self) -> Snapshot:
        """Returns what steps change. It is the same at all survivors."""

    def nbytes(self) -> int:
        """Returns about how many bytes the buffers of a snapshot have."""

    def record(self, place: int, count: int, before: Callable[[], None]) -> Recording:
        """Keeps stripe `place` of `count` of what is applied from now on. `before` is called
        whenever the buffers of a snapshot are about to be changed.
        """

    def rest(self) -> Sequence[bytes | memoryview]:
        """Returns all else that the State has."""

    def load(self, header: bytes, buffers: list[np.ndarray]) -> None:
        """Takes a snapshot over."""

    def apply(self, header: bytes, data: np.ndarray) -> None:
        """Makes a recorded call again. `data` is its whole large part."""

    def load_rest(self, payload: memoryview) -> None:
        """Takes the rest over."""
