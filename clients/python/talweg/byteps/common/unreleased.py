# SPDX-License-Identifier: Apache-2.0
"""What a module of BytePS's says of calls that only its unreleased branches have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def remedies(module: str, instead: Mapping[str, str]) -> Callable[[str], Any]:
    """The module's __getattr__: an AttributeError that names what to use instead of such a call."""

    def missing(name: str) -> Any:
        text = f"module {module!r} has no attribute {name!r}"
        if name in instead:
            text += f", which no release of BytePS has: use {instead[name]}"
        raise AttributeError(text)

    return missing
