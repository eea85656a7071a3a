# SPDX-License-Identifier: Apache-2.0
"""Checks that a call fails or warns as expected, in programs of tests."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def expect(
    exception: type[BaseException], text: str, call: Any, *arguments: Any, **keywords: Any
) -> None:
    """Raises AssertionError unless the call raises `exception` with `text` in its message."""
    try:
        call(*arguments, **keywords)
    except exception as error:
        assert text in str(error), f"'{text}' is not in: {error}"
        return
    raise AssertionError(f"{call} raised nothing, not {exception.__name__}")


def expect_warning(
    category: type[Warning], text: str, call: Any, *arguments: Any, **keywords: Any
) -> Any:
    """Returns the call's result. Raises AssertionError unless it warns once of the calling line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*arguments, **keywords)
        line = sys._getframe().f_lineno - 1
    found = [each for each in caught if each.category is category and text in str(each.message)]
    places = [(each.filename, each.lineno) for each in found]
    assert places == [(__file__, line)], f"{call}: {places or [str(each) for each in caught]}"
    return result
