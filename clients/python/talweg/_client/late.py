# SPDX-License-Identifier: Apache-2.0
"""A rank on a host that is listed when the job is about to end. It ends with one line of text.

Nothing is wrong with its program, so a traceback would mislead.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from talweg._node import too_late
from talweg.errors import JobFailed

# The variable is set where hosts come and go.
_VARIABLE = "TALWEG_HOST"
_hooks: list[object] = []


def _told(error: BaseException | None) -> str:
    """Returns the agent's text if `error` is due to a late arrival, else an empty string."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, JobFailed) and too_late.WORDS in str(error):
            return str(error)
        seen.append(error)
        error = error.__cause__ or error.__context__
    return ""


def explain() -> None:
    """Makes an end of this process for that reason print one line. Its exit status stays."""
    if _VARIABLE not in os.environ or sys.excepthook in _hooks:
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = _told(error)
        if text:
            print(f"talweg: this rank comes too late: {text}", file=sys.stderr)
        else:
            before(kind, error, trace)

    _hooks.append(hook)
    sys.excepthook = hook
