# SPDX-License-Identifier: Apache-2.0
"""Compressors of gradients, for an optimizer's `compression`. See docs/compression.md.

TopK        sends the largest numbers of a gradient
RandomK     sends numbers at random places
OneBit      sends the sign of each number, and one magnitude
Dithering   sends each number rounded at random to one of few levels
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from talweg._declaration import Encoding
from talweg.errors import InvalidArgument

__all__ = ["Compression", "Dithering", "OneBit", "RandomK", "TopK"]

# A smaller gradient is sent as it is: what it would save is less than what it costs.
BYTES_MIN = 65536
_LEVELS_MAX, _NATURAL_LEVELS_MAX = 127, 31
_SEED_MAX = 2**64 - 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _require_whole(name: str, value: Any, least: int, most: int) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        raise InvalidArgument(f"{name} is {value!r}; it must be a whole number, {least} to {most}")


def _require_kept(name: str, k: Any) -> None:
    if not _is_number(k) or k <= 0 or (k > 1 and k != int(k)):
        raise InvalidArgument(
            f"{name}: k is {k!r}; it must be a part of each gradient, above 0 and below 1, such as "
            "0.01, or a whole number of numbers of each"
        )


def _require_bools(**values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} is {value!r}; it must be True or False")


class Compression:
    """What all compressors are. A value of a subclass is given to an optimizer."""

    encoding: ClassVar[Encoding]  # How compressed gradients travel between nodes.
    error_feedback: bool  # Whether what is taken away is added to the next gradient.
    bytes_min: int  # Gradients of fewer bytes are sent as they are.


@dataclass(frozen=True)
class TopK(Compression):
    """Sends the k numbers of largest magnitude, and zeros in place of the others.

    k below 1 is a part of each gradient, at least one number; otherwise a number of numbers. With
    `error_feedback` the others are added to the next gradient. Without it they are lost. Gradients
    of fewer than `bytes_min` bytes are sent as they are.
    """

    encoding: ClassVar[Encoding] = Encoding.GAPS
    k: float
    error_feedback: bool = True
    bytes_min: int = BYTES_MIN

    def __post_init__(self) -> None:
        _require_kept("TopK", self.k)
        _require_bools(error_feedback=self.error_feedback)
        _require_whole("bytes_min", self.bytes_min, 0, _SEED_MAX)


@dataclass(frozen=True)
class RandomK(Compression):
    """Sends k numbers at random places, the same at all ranks, and zeros in place of the others.

    Its arguments mean what TopK's do. `seed` and the step decide the places.
    """

    encoding: ClassVar[Encoding] = Encoding.GAPS
    k: float
    seed: int = 0
    error_feedback: bool = True
    bytes_min: int = BYTES_MIN

    def __post_init__(self) -> None:
        _require_kept("RandomK", self.k)
        _require_whole("seed", self.seed, 0, _SEED_MAX)
        _require_bools(error_feedback=self.error_feedback)
        _require_whole("bytes_min", self.bytes_min, 0, _SEED_MAX)


@dataclass(frozen=True)
class OneBit(Compression):
    """Sends the sign of each number, and one magnitude for all: their mean with `scaling`, else 1.

    The other arguments mean what TopK's do.
    """

    encoding: ClassVar[Encoding] = Encoding.FEW
    scaling: bool = True
    error_feedback: bool = True
    bytes_min: int = BYTES_MIN

    def __post_init__(self) -> None:
        _require_bools(scaling=self.scaling, error_feedback=self.error_feedback)
        _require_whole("bytes_min", self.bytes_min, 0, _SEED_MAX)


@dataclass(frozen=True)
class Dithering(Compression):
    """Sends each number rounded, up or down at random, to one of k levels, zero, or minus a level.

    The mean of what is sent is the number itself, so it works without error feedback. `levels` are
    "linear" (equally far from each other) or "natural" (powers of two). The top level is the
    gradient's `norm`: "max", its largest magnitude, or "l2". Equal seeds, steps and ranks round
    alike. The other arguments mean what TopK's do.
    """

    encoding: ClassVar[Encoding] = Encoding.FEW
    k: int
    levels: str = "linear"
    norm: str = "max"
    seed: int = 0
    error_feedback: bool = False
    bytes_min: int = BYTES_MIN

    def __post_init__(self) -> None:
        if self.levels not in ("linear", "natural"):
            raise InvalidArgument(f"levels is {self.levels!r}; it must be 'linear' or 'natural'")
        if self.norm not in ("max", "l2"):
            raise InvalidArgument(f"norm is {self.norm!r}; it must be 'max' or 'l2'")
        most = _NATURAL_LEVELS_MAX if self.levels == "natural" else _LEVELS_MAX
        _require_whole(f"Dithering: k, the number of {self.levels} levels,", self.k, 1, most)
        _require_whole("seed", self.seed, 0, _SEED_MAX)
        _require_bools(error_feedback=self.error_feedback)
        _require_whole("bytes_min", self.bytes_min, 0, _SEED_MAX)
