# SPDX-License-Identifier: Apache-2.0
"""Where a program calls a library, for texts of errors."""

from __future__ import annotations

import sys
from types import CodeType
from typing import NamedTuple

# Whose functions are no part of a program.
_LIBRARIES = ("talweg", "torch")


class CallSite(NamedTuple):
    """A line of a program. Cheap to take; the text is made where it is wanted."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


def call_site() -> CallSite | None:
    """The innermost line of this thread that is in neither Talweg nor torch, if there is one."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if not isinstance(module, str) or module.partition(".")[0] not in _LIBRARIES:
            return CallSite(frame.f_code, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
