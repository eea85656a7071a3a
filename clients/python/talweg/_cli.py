# SPDX-License-Identifier: Apache-2.0
"""The command `talweg` of an installed wheel: becomes the tool that the wheel carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    tool = Path(__file__).resolve().parent / "bin" / "talweg"
    if not tool.is_file():
        sys.exit(f"talweg: {tool} is missing: this package was not installed from a wheel")
    # Where hosts come and go the tool runs this package.
    os.environ.setdefault("TALWEG_PYTHON", sys.executable)
    os.execv(tool, [str(tool), *sys.argv[1:]])
