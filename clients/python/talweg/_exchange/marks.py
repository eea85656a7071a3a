# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other beside a step's gradients. All get the maximum of each byte."""

from __future__ import annotations

from talweg._exchange.names import DIGEST_BYTES

# Marks.batch.
NO_BATCH, BATCH, BATCH_AND_LOSS = range(3)


class Marks:
    """One step's marks, of `parameters` parameters."""

    def __init__(self, parameters: int) -> None:
        self.data = bytearray(2 * parameters + 1 + 2 * DIGEST_BYTES)
        view = memoryview(self.data)
        self.used = view[:parameters]  # 1 for each parameter that has a gradient.
        # One byte: whether the rank has a batch, and whether a round of the loss follows.
        self.batch = view[parameters : parameters + 1]
        self.forms = view[parameters + 1 : 2 * parameters + 1]  # As far as ranks know them.
        self.digest = view[-2 * DIGEST_BYTES :]  # From the parameters' names and shapes.
