# SPDX-License-Identifier: Apache-2.0
"""How fast the examples train: the same words in all of them."""

from __future__ import annotations

import time


class ImageSpeed:
    """Measures how many images a second a rank trains. All ranks train equally many."""

    def __init__(self, ranks: int, device: str) -> None:
        self._ranks = ranks
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Starts anew, as after something else than training."""
        self._images = 0
        self._began = time.monotonic()

    def add(self, images: int) -> None:
        """Counts images that this rank has trained."""
        self._images += images

    def text(self, end: float | None = None) -> str:
        """Returns the speed until `end`, a time of the monotonic clock, or until now. Starts anew.

        What a GPU still computes counts as trained, so wait for it first.
        """
        seconds = (time.monotonic() if end is None else end) - self._began
        figure = self._images / max(seconds, 1e-9)
        self.begin()
        in_all = figure * self._ranks
        return f"Speed: {figure:.1f} img/sec per {self._device}, {in_all:.1f} in all"
