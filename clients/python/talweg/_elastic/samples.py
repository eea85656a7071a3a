# SPDX-License-Identifier: Apache-2.0
"""The samples of an epoch that nobody has taken yet."""

from __future__ import annotations


class Samples:
    """Samples in the order in which they are dealt. A step costs what it deals, however many are
    left.
    """

    def __init__(self, order: list[int]) -> None:
        self._order = order
        self._begin = 0  # Those before are taken.

    def __len__(self) -> int:
        return len(self._order) - self._begin

    @property
    def begin(self) -> int:
        """The place of the first sample that is left."""
        return self._begin

    @property
    def end(self) -> int:
        return len(self._order)

    def between(self, begin: int, end: int) -> list[int]:
        """Returns the samples from place `begin` to before place `end`."""
        return self._order[begin:end]

    def all(self) -> list[int]:
        return self._order[self._begin :]

    def take(self, count: int) -> None:
        """Takes the first `count` samples."""
        self._begin += count

    def give_back(self, samples: list[int]) -> None:
        """Makes these the first ones again. So many have been taken, at least."""
        end, self._begin = self._begin, self._begin - len(samples)
        if self._begin < 0:
            raise ValueError(f"{len(samples)} samples come back, and {end} have been taken")
        self._order[self._begin : end] = samples
