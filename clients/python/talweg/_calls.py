# SPDX-License-Identifier: Apache-2.0
"""Calls that objects have asked for, and that end with these objects."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, Optional

# Gives a call, as long as the call's object lives.
_Reference = Callable[[], Optional[Callable[..., None]]]


class Calls:
    """A list of functions and methods. A method is in it as long as its object lives."""

    def __init__(self) -> None:
        self._references: list[_Reference] = []

    def __len__(self) -> int:
        return len(self._references)

    def add(self, call: Callable[..., None]) -> None:
        """weakref.WeakMethod would complain of objects that go when the interpreter ends."""
        references = self._references
        if not isinstance(call, MethodType):
            references.append(lambda: call)
            return
        function = call.__func__
        owner = weakref.ref(call.__self__, lambda _: references.remove(method))

        def method() -> MethodType | None:
            found = owner()
            return None if found is None else MethodType(function, found)

        references.append(method)

    def __call__(self, *arguments: Any) -> None:
        """Calls all of them, in the order in which they were added."""
        for reference in list(self._references):
            call = reference()
            if call is not None:
                call(*arguments)
