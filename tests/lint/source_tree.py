# SPDX-License-Identifier: Apache-2.0
"""Finds the source files that the lint tests look at."""

from __future__ import annotations

import os
from pathlib import Path

# Made by tools, or by git: nothing that anybody wrote.
_NOT_SOURCES = {
    ".cache",
    ".git",
    ".mypy_cache",
    ".ruff_cache",
    ".venv",
    "__pycache__",
    "dist",
}


def root() -> Path:
    """The source tree: Bazel links a test's files to where they are."""
    return Path("LICENSE").resolve().parent


def files(*suffixes: str) -> list[str]:
    """Returns the paths from root() of all files with one of the suffixes."""
    found: list[str] = []
    top = root()
    for directory, names, file_names in os.walk(top):
        here = Path(directory)
        names[:] = [
            name
            for name in names
            if name not in _NOT_SOURCES
            # Links that Bazel makes, and what packaging tools make.
            and not (here == top and (name.startswith("bazel-") or name == "build"))
            # Nested checkouts.
            and not (here / name / ".git").exists()
        ]
        found += [
            str((here / name).relative_to(top)) for name in file_names if name.endswith(suffixes)
        ]
    # The talweg package may itself be called build; it is not, so the names above are safe.
    return sorted(found)
