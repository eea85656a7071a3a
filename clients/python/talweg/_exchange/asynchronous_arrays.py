# SPDX-License-Identifier: Apache-2.0
"""Parameters that a framework gives as NumPy arrays, and takes back as such."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

# Numbers that are rounded together (docs/arithmetic.md). So each parameter begins a block.
BLOCK = 256


class Arrays:
    """`values` are this rank's parameters, of any floating-point dtypes. The framework sets them
    before each call, and takes them afterwards. See asynchronous.Parameters.
    """

    def __init__(self, names: Sequence[str], values: Sequence[np.ndarray]) -> None:
        self._names = list(names)
        self.values = list(values)
        is_double = any(each.dtype == np.float64 for each in values)
        self._dtype = np.dtype(np.float64 if is_double else np.float32)
        self._base = self.zeros()  # The parameters as they were after the last merge.

    def zeros(self) -> np.ndarray:
        length = sum(-(-each.size // BLOCK) * BLOCK for each in self.values)
        return np.zeros(length, self._dtype)

    def texts(self) -> list[str]:
        return [
            f"'{name}' ({each.dtype}{list(each.shape)})"
            for name, each in zip(self._names, self.values)
        ]

    def pieces(self) -> list[np.ndarray]:
        return [np.array(each, order="C").reshape(-1).view(np.uint8) for each in self.values]

    def put(self, place: int, data: np.ndarray) -> None:
        old = self.values[place]
        self.values[place] = data.view(old.dtype).reshape(old.shape)

    def begin(self, shared: np.ndarray) -> None:
        for value, base in zip(self._numbers(), self._places(self._base)):
            base[...] = value
        shared[...] = self._base

    def merge(self, shared: np.ndarray, movement: np.ndarray) -> None:
        places = zip(*map(self._places, (shared, movement, self._base)))
        for place, (value, (together, moved, base)) in enumerate(zip(self._numbers(), places)):
            np.subtract(value, base, out=moved)
            old = self.values[place]
            new = (together + moved).astype(old.dtype, copy=False)
            base[...] = new  # Rounded, if the parameter has 16 bits.
            self.values[place] = new.reshape(old.shape)

    def fetch(self) -> None:
        """Does nothing: `values` are up to date."""

    def give_back(self) -> None:
        """Does nothing: whoever called has `values`."""

    def _numbers(self) -> Iterator[np.ndarray]:
        for value in self.values:
            yield value.reshape(-1).astype(self._dtype, copy=False)

    def _places(self, buffer: np.ndarray) -> Iterator[np.ndarray]:
        begin = 0
        for value in self.values:
            yield buffer[begin : begin + value.size]
            begin += -(-value.size // BLOCK) * BLOCK
