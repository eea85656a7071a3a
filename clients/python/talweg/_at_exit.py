# SPDX-License-Identifier: Apache-2.0
"""What a process does when it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable

# A file that says to `talweg run` that this rank's program has ended by an error, and since when.
# The other ranks fail because of it, and may end before it.
_MARK_VARIABLE = "TALWEG_RUN_FAILS"


def _mark_failure() -> None:
    path = os.environ.get(_MARK_VARIABLE)
    # The interpreter sets it where nobody has caught an exception.
    if not path or getattr(sys, "last_value", None) is None:
        return
    now_ns = time.time_ns()
    with contextlib.suppress(OSError), open(path, "w"):
        os.utime(path, ns=(now_ns, now_ns))


def register(call: Callable[[], None]) -> None:
    """Has it called when the interpreter ends, or when a child of multiprocessing does: such a
    child, as torch.multiprocessing.spawn starts it, calls nothing of atexit's.
    """

    def at_exit() -> None:
        _mark_failure()
        call()

    atexit.register(at_exit)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, call, exitpriority=0)
