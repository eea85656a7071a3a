# SPDX-License-Identifier: Apache-2.0
"""The COMMAND of BytePS's launchers as a line for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence


def line_of(command: Sequence[str]) -> str:
    """Returns the command's line. A single word is a line of shell. Several are quoted."""
    return command[0] if len(command) == 1 else shlex.join(command)


def becoming(command: Sequence[str]) -> str:
    """Returns a line by which the shell becomes the command, if the command has several words.

    A shell runs a line of shell itself: `exec` would run that line's first command alone.
    """
    if len(command) == 1:
        return command[0]
    sets_variables = re.match(r"[A-Za-z_]\w*=", command[0])
    return f"exec {'env ' if sets_variables else ''}{shlex.join(command)}"
