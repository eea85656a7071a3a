# SPDX-License-Identifier: Apache-2.0
"""What is done before and after a reduction, for every framework: factors, by talweg_scale() of
talweg.h, and averages of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from talweg._client import Client
from talweg._declaration import DType
from talweg.errors import InvalidArgument, WrongType


@dataclass(frozen=True)
class Factors:
    """The factors for each rank's tensor and for the result."""

    prescale: float = 1.0
    postscale: float = 1.0

    def require(self, dtype: DType, operation: str) -> None:
        """Raises InvalidArgument if a tensor of `dtype` cannot be scaled by the factors, and
        WrongType for factors that are no numbers.
        """
        for name, value in (("prescale", self.prescale), ("postscale", self.postscale)):
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                raise WrongType(f"{operation}: {name}_factor is {value!r}; it must be a number")
            try:
                float(value)
            except OverflowError:
                raise InvalidArgument(
                    f"{operation}: {name}_factor is an integer that is too large for a float64: "
                    "give a smaller one"
                ) from None
            if dtype is DType.BOOL and value != 1.0:
                raise InvalidArgument(
                    f"{operation}: {name}_factor is {value}, but bools are not scaled: leave it out"
                )

    def before(self, client: Client, dtype: DType, source: np.ndarray) -> tuple[np.ndarray, int]:
        """Returns the array that this rank pushes instead of `source`, and its address."""
        if self.prescale == 1.0:
            return source, int(source.ctypes.data)
        return self.scaled(client, dtype, int(source.ctypes.data), source.nbytes)

    def scaled(
        self, client: Client, dtype: DType, address: int, nbytes: int
    ) -> tuple[np.ndarray, int]:
        """Returns the bytes at `address` times the first factor, in memory of their own."""
        scaled: np.ndarray = np.empty(nbytes, np.uint8)
        at = int(scaled.ctypes.data)
        client.connection.scale(dtype, self.prescale, address, at, nbytes // dtype.nbytes)
        return scaled, at

    def after(
        self, client: Client, dtype: DType, address: int, count: int
    ) -> Callable[[], None] | None:
        """Returns the function to call when the result is at `address`."""
        if self.postscale == 1.0:
            return None
        return lambda: client.connection.scale(dtype, self.postscale, address, address, count)


NO_FACTORS = Factors()


def average_integers(
    sums: np.ndarray, ranks: int, postscale: float = 1.0, rounds_down: bool = False
) -> None:
    """Makes sums of integers averages, in place: divided by `ranks`, times `postscale`.

    Rounds once, towards zero, or with `rounds_down` down. Without a factor the division is exact;
    with one it is in f64.
    """
    averages: np.ndarray
    if postscale != 1.0:
        averages = sums.astype(np.float64) * postscale / ranks
        averages = np.floor(averages) if rounds_down else np.trunc(averages)
    else:
        wide: np.ndarray = sums.astype(np.uint64 if sums.dtype.kind == "u" else np.int64)
        divisor = wide.dtype.type(ranks)
        averages = wide // divisor
        if not rounds_down:
            averages += (wide < 0) & (averages * divisor != wide)
    sums[...] = averages.astype(sums.dtype)
