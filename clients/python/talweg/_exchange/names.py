# SPDX-License-Identifier: Apache-2.0
"""What ranks compare of an exchange's parameters: their names and shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from talweg._exchange.adapter import Adapter
from talweg.errors import Mismatch

DIGEST_BYTES = 8
# How the text of a parameter ends that is frozen, where ranks compare that.
FROZEN = ", frozen"
# What the text of a parameter goes on with whose gradients are compressed.
COMPRESSED = ", compressed by "
# What it goes on with if gradients are not just averaged.
COMBINED = ", combined with "
_SAME_CHOICES = (
    ", and give its optimizer the same operation, compression, factors and sparse_as_dense"
)


class ModelMismatch(Mismatch):
    """Ranks have other parameters, or combine their gradients otherwise. No state that a program
    restores makes them alike. Rounds that only some ranks have started stay open.
    """


def digest_of(texts: Iterable[str]) -> bytes:
    """Returns a digest. Its maximum shows each byte's largest and smallest value."""
    digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=DIGEST_BYTES).digest()
    return digest + bytes(255 - byte for byte in digest)


def _is_one_digest(highest: memoryview) -> bool:
    pairs = zip(highest[:DIGEST_BYTES], highest[DIGEST_BYTES:])
    return all(largest + smallest == 255 for largest, smallest in pairs)


class Names:
    """Whether all ranks have the same parameters. A rank says the text of each."""

    def __init__(self, adapter: Adapter, name: str) -> None:
        """`name` is the exchange's."""
        self._adapter, self._name = adapter, name
        self.are_alike = False  # At all ranks, as far as is known here.
        self.mismatch: Mismatch | None = None

    def begin_anew(self) -> None:
        """Ranks compare again: the job may be another one."""
        self.are_alike, self.mismatch = False, None

    def check(self, highest: memoryview, own: Sequence[str]) -> None:
        """Takes the maximum of all ranks' digests. `own` are this rank's texts."""
        self.are_alike = _is_one_digest(highest)
        if self.are_alike:
            return
        told = self._adapter.gather_names(own, f"{self._name}.names")
        text = "parameters have other names or shapes here than at another rank"
        for rank, texts in told.items():
            first, reference = next(iter(told.items()))
            place = next(
                (i for i, pair in enumerate(zip(reference, texts)) if len(set(pair)) > 1), None
            )
            if place is not None:
                text = (
                    f"parameter {place} is {reference[place]} at rank {first}, but "
                    f"{texts[place]} at rank {rank}"
                )
                break
        everything = [each for texts in told.values() for each in texts]
        is_frozen = any(each.endswith(FROZEN) for each in everything)
        is_compressed = any(COMPRESSED in each for each in everything)
        is_combined = any(COMBINED in each for each in everything)
        self.mismatch = ModelMismatch(
            f"'{self._name}': {text}: build the same model, with its parameters in one order, at "
            "every rank"
            + ", and freeze and thaw them at all ranks alike" * is_frozen
            + ", and give its optimizer the same compression" * (is_compressed and not is_combined)
            + _SAME_CHOICES * is_combined
        )
