# SPDX-License-Identifier: Apache-2.0
"""What a process does when it ends."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable


def register(call: Callable[[], None]) -> None:
    """Has it called when the interpreter ends, or when a child of multiprocessing does: such a
    child, as torch.multiprocessing.spawn starts it, calls nothing of atexit's.
    """
    atexit.register(call)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, call, exitpriority=0)
