# SPDX-License-Identifier: Apache-2.0
"""Where the tool `talweg` is, and what the end of a program means to a shell.

The tool is inside the wheel, beside the sources in Bazel's output, or on the path.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from talweg.errors import TalwegError


def _candidates() -> list[Path]:
    # Bazel's runfiles are links into the source tree: look along both paths.
    here, source = Path(__file__).absolute(), Path(__file__).resolve()
    found = [source.parent / "bin" / "talweg"]
    for parent in [*here.parents, *source.parents]:
        found.append(parent / "clients" / "cli" / "talweg")
        found.append(parent / "bazel-bin" / "clients" / "cli" / "talweg")
    return found


def tool() -> str:
    """The path of the tool, which finds the daemons itself."""
    for candidate in _candidates():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    on_path = shutil.which("talweg")
    if on_path is None:
        raise TalwegError(
            "the tool talweg was not found: install the wheel, or build //clients/cli:talweg and the "
            "daemons (bazel build //clients/cli:talweg //services/...)"
        )
    return on_path


def shell_status(returncode: int) -> int:
    """Returns a process's exit status as a shell does: 128 plus the signal that has ended it."""
    return returncode if returncode >= 0 else 128 - returncode
