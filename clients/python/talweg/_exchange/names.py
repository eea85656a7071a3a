# SPDX-License-Identifier: Apache-2.0
"""Whether all ranks have the same parameters."""

from __future__ import annotations

from collections.abc import Sequence

from talweg._exchange.adapter import Adapter
from talweg._exchange.marks import is_one_digest, names_digest
from talweg.errors import Mismatch


class Names:
    """The names and shapes of an exchange's parameters, as far as ranks have compared them."""

    def __init__(self, adapter: Adapter, title: str) -> None:
        self._adapter = adapter
        self._title = title
        self._own: list[str] = []
        self.digest = names_digest([])
        self.are_alike = False  # At all ranks, as far as is known here.
        self._mismatch: Mismatch | None = None

    def set(self, own: Sequence[str]) -> None:
        """Takes the texts that ranks compare. They have not compared these yet."""
        self._own = list(own)
        self.digest = names_digest(own)
        self.are_alike = False

    def begin_anew(self) -> None:
        """Begins again, in a job whose ranks may have other parameters."""
        self.are_alike, self._mismatch = False, None

    def require(self) -> None:
        """Raises the Mismatch that compare() has found."""
        if self._mismatch is not None:
            raise self._mismatch

    def compare(self, highest: memoryview) -> None:
        """Compares the ranks' parameters, by the digest in the marks. See require()."""
        self.are_alike = is_one_digest(highest)
        if self.are_alike:
            return
        told = self._adapter.gather_names(self._own, f"{self._title}.names")
        text = "parameters have other names or shapes here than at another rank"
        for rank, names in told.items():
            first, reference = next(iter(told.items()))
            place = next(
                (i for i, pair in enumerate(zip(reference, names)) if len(set(pair)) > 1), None
            )
            if place is not None:
                text = (
                    f"parameter {place} is {reference[place]} at rank {first}, but "
                    f"{names[place]} at rank {rank}"
                )
                break
        self._mismatch = Mismatch(
            f"'{self._title}': {text}: build the same model, with its parameters in one order, at "
            "every rank"
        )
