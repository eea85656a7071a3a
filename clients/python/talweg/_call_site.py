# SPDX-License-Identifier: Apache-2.0
"""Where a program calls a library, for texts of errors and for warnings."""

from __future__ import annotations

import sys
import warnings
from itertools import takewhile
from types import CodeType, FrameType
from typing import NamedTuple

# Whose functions are no part of a program. Frameworks decorate theirs with those of the first three.
_LIBRARIES = (
    "contextlib",
    "typing_extensions",
    "warnings",
    "keras",
    "mxnet",
    "talweg",
    "tensorflow",
    "tf_keras",
    "torch",
)


class CallSite(NamedTuple):
    """A line of a program. Cheap to take; the texts are made where they are wanted."""

    code: CodeType
    line: int
    # The libraries' functions that it is in, with their modules, the outermost last.
    within: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"

    @property
    def call(self) -> str:
        """The function of Talweg's that the program, or a framework, has called; empty: it has none
        of those that are for programs.
        """
        for module, function in reversed(self.within):
            if function.startswith("_"):
                continue
            public = "".join(takewhile(lambda part: part[1] != "_", _parts(module)))[1:]
            if callable(getattr(sys.modules.get(public), function, None)):
                return function
        return ""


def _parts(module: str) -> list[str]:
    """[".talweg", ".torch", "._tensors"] of Talweg's modules, none of others'."""
    parts = module.split(".")
    return [f".{part}" for part in parts] if parts[0] == "talweg" else []


def _program_frame(within: list[tuple[str, str]] | None = None) -> FrameType | None:
    """The innermost of this thread that is neither Talweg's nor a framework's, if there is one.

    `within` is told of those.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if not isinstance(module, str) or module.partition(".")[0] not in _LIBRARIES:
            return frame
        if within is not None:
            within.append((module, frame.f_code.co_name))
        frame = frame.f_back
    return None


def call_site() -> CallSite | None:
    """The line of this thread that has called Talweg, or a framework that has, if there is one."""
    within: list[tuple[str, str]] = []
    frame = _program_frame(within)
    return None if frame is None else CallSite(frame.f_code, frame.f_lineno, tuple(within))


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns of that line, where it can be mended, however deep in the library this is."""
    frame = _program_frame()
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        text, category, frame.f_code.co_filename, frame.f_lineno, names.get("__name__"), registry
    )
