# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other beside a step's gradients. All get the maximum of each byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_DIGEST_BYTES = 8


class Marks:
    """One step's marks, of `parameters` parameters."""

    def __init__(self, parameters: int) -> None:
        self.data = bytearray(2 * parameters + 1 + 2 * _DIGEST_BYTES)
        view = memoryview(self.data)
        self.used = view[:parameters]  # 1 for each parameter that has a gradient.
        self.ranks_with_batch = view[parameters : parameters + 1]  # 1 if a rank has one.
        self.forms = view[parameters + 1 : 2 * parameters + 1]  # As far as ranks know them.
        self.digest = view[-2 * _DIGEST_BYTES :]  # From the parameters' names and shapes.


def names_digest(names: Iterable[str]) -> bytes:
    """Returns a digest. Its maximum shows each byte's largest and smallest value."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=_DIGEST_BYTES).digest()
    return digest + bytes(255 - byte for byte in digest)


def is_one_digest(highest: memoryview) -> bool:
    """Whether all ranks have given the same names_digest()."""
    pairs = zip(highest[:_DIGEST_BYTES], highest[_DIGEST_BYTES:])
    return all(largest + smallest == 255 for largest, smallest in pairs)
