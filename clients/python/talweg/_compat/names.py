# SPDX-License-Identifier: Apache-2.0
"""Names of optimizers and layers that a program has not named. docs/horovod.md has the rule."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Made:
    """A name that was given for parameters."""

    serial: int
    name: str
    kind: str
    texts: list[str]
    parameters: list[weakref.ref[Any]]  # They do not keep a model alive.

    def is_for(self, kind: str, texts: list[str], parameters: Sequence[Any]) -> bool:
        return (self.kind, self.texts) == (kind, texts) and all(
            own() is parameter for own, parameter in zip(self.parameters, parameters)
        )


@dataclass(frozen=True)
class Place:
    """A place in a program: the names that were given before it."""

    counts: Counter[str]
    serial: int


class Names:
    """The names that were given in this process. They go on when it leaves its job for another, as
    an optimizer that lives on keeps its name.

    Nothing here depends on when Python collects garbage, which each rank does at another time.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._serial = 0
        self._made: list[_Made] = []

    def next(self, kind: str, named: Sequence[tuple[str, Any]] = ()) -> str:
        """Returns the next name of its kind. If `named`, parameters and their names, have a name of
        this kind already, it returns that, and counts nothing: a rank that has come later has
        perhaps made one optimizer of them where others have made several.
        """
        parameters = [parameter for _, parameter in named]
        # A tensor's name stays with its dtype and length, which a parameter may change.
        texts = [f"{name} {each.dtype} {tuple(each.shape)}" for name, each in named]
        for earlier in self._made:
            if named and earlier.is_for(kind, texts, parameters):
                return earlier.name
        self._counts[kind] += 1
        name = kind if self._counts[kind] == 1 else f"{kind}.{self._counts[kind]}"
        if named:
            self._made = [each for each in self._made if each.parameters[0]() is not None]
            references = list(map(weakref.ref, parameters))
            self._made.append(_Made(self._serial, name, kind, texts, references))
            self._serial += 1
        return name

    @property
    def place(self) -> Place:
        return Place(Counter(self._counts), self._serial)

    def go_back(self, place: Place) -> None:
        """Forgets what was named after `place`, because the program runs again from there."""
        self._counts = Counter(place.counts)
        self._made = [each for each in self._made if each.serial < place.serial]


names = Names()
