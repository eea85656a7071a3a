# SPDX-License-Identifier: Apache-2.0
"""For programs of tests: a call that has to fail, saying so."""

from __future__ import annotations

from typing import Any


def expect(
    exception: type[BaseException], text: str, call: Any, *arguments: Any, **keywords: Any
) -> None:
    """AssertionError unless the call raises `exception`, with `text` in its words."""
    try:
        call(*arguments, **keywords)
    except exception as error:
        assert text in str(error), f"'{text}' is not in: {error}"
        return
    raise AssertionError(f"{call} raised nothing, not {exception.__name__}")
