# SPDX-License-Identifier: Apache-2.0
"""Runs one linter over the source tree; says how to mend what it finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lint import source_tree

_REMEDY = {
    "clang-format": "run bazel/format",
    "ruff": "run bazel/format, then .venv/bin/ruff check --fix",
    "mypy": "settings are in pyproject.toml",
}


def commands(linter: str, cache: str) -> list[list[str]]:
    venv = Path(sys.prefix) / "bin"
    if linter == "clang-format":
        sources = source_tree.files(".cc", ".h", ".c")
        return [["clang-format-16", "--dry-run", "--Werror", *sources]] if sources else []
    if linter == "ruff":
        ruff = str(venv / "ruff")
        sources = source_tree.files(".py")
        return [
            [ruff, "check", "--no-cache", *sources],
            [ruff, "format", "--no-cache", "--check", *sources],
        ]
    if linter == "mypy":
        # A module is checked with the tests or with the package that it belongs to, by its path.
        sources = source_tree.files(".py")
        return [[str(venv / "mypy"), "--cache-dir", f"{cache}/mypy", *sources]]
    raise SystemExit(f"run_linter: unknown linter '{linter}'; known: {', '.join(_REMEDY)}")


def main() -> int:
    if os.environ.get("TALWEG_SANITIZER"):
        print("SKIPPED: a sanitizer does not change the sources; ./test without one reads them")
        return 0
    linter = sys.argv[1]
    cache = os.environ["TEST_TMPDIR"]
    failed = False
    for command in commands(linter, cache):
        result = subprocess.run(command, cwd=source_tree.root(), check=False)
        failed = failed or result.returncode != 0
    if failed:
        print(f"{linter} found something (above): {_REMEDY[linter]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
