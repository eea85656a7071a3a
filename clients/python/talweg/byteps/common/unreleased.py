# SPDX-License-Identifier: Apache-2.0
"""Names the remedies for calls that only unreleased branches of BytePS have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def remedies(module: str, instead: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a module's __getattr__(), which raises AttributeError and names the call to use."""

    def missing(name: str) -> Any:
        text = f"module {module!r} has no attribute {name!r}"
        if name in instead:
            text += f", which no release of BytePS has: use {instead[name]}"
        raise AttributeError(text)

    return missing
