# SPDX-License-Identifier: Apache-2.0
"""The forms of gradients: dense, or sparse with so many sparse dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from talweg._exchange.adapter import DENSE, UNKNOWN, Adapter


class Forms:
    """The forms that all ranks have agreed on.

    Gradients of one parameter all have one form. The marks tell it to ranks that have no gradient.
    It is then agreed for good. If ranks differ, it is dense. Until it is agreed

        a dense gradient               leaves at the end of the pass
        a sparse gradient, or none     is held until the marks are there, and leaves if any rank has
                                       a gradient
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._agreed: dict[int, int] = {}
        self.refused: list[int] = []

    def begin_anew(self, indices: Iterable[int]) -> None:
        """Forgets what was agreed."""
        self._agreed.clear()
        self.refused.clear()
        self.agree_to_dense(indices)

    def agree_to_dense(self, indices: Iterable[int]) -> None:
        """Agrees to the form of parameters that have no sparse gradients, without asking."""
        for index in indices:
            if not self._adapter.may_be_sparse(index):
                self._agreed[index] = DENSE

    def is_agreed(self, index: int) -> bool:
        return index in self._agreed

    def agreed(self, index: int) -> int:
        """Returns the form that is agreed; UNKNOWN if none is."""
        return self._agreed.get(index, UNKNOWN)

    def hear(self, index: int, told: int) -> None:
        """Agrees to what the marks tell, or refuses it if another form was agreed before."""
        if told != UNKNOWN and self._agreed.setdefault(index, told) != told:
            self.refused.append(index)

    def here(self, index: int, has_gradient: bool) -> int:
        """Returns the form that is agreed, or else that of this rank's gradient."""
        form = self._agreed.get(index)
        if form is not None:
            return form
        return self._adapter.form_of(index) if has_gradient else UNKNOWN

    def held(self, forms: Mapping[int, int]) -> list[int]:
        """Returns the parameters that leave when the marks are there. `forms` are those here."""
        return [
            index for index, form in forms.items() if form != DENSE and index not in self._agreed
        ]
