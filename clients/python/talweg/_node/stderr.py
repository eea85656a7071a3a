# SPDX-License-Identifier: Apache-2.0
"""What launchers and keepers say to the user."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Writes a line to stderr. If that fails, as on a full disk or if the reader has gone, the line
    is lost: no job ends because of it.
    """
    if sys.stderr is None:  # print() would take stdout.
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"talweg: {text}", file=sys.stderr, flush=True)
