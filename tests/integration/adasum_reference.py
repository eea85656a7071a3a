# SPDX-License-Identifier: Apache-2.0
"""Adasum of arrays, two at a time, as its paper defines it. All of it in double precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot = float((a * b).sum())
    result: np.ndarray = np.zeros_like(a)
    for each in (a, b):
        norm = float((each * each).sum())
        result += (1 - (dot / (2 * norm) if norm > 0 else 0)) * each
    return result


def adasum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Combines neighbours, and then the results, until one is left."""
    left = [np.asarray(each, np.float64) for each in arrays]
    while len(left) > 1:
        pairs = [left[at : at + 2] for at in range(0, len(left), 2)]
        left = [_pair(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return left[0]
