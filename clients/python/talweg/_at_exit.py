# SPDX-License-Identifier: Apache-2.0
"""What a process does when it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable

# A file that says to `talweg run` that this rank's program has ended, and since when. If it has
# ended by an error or by sys.exit(), the other ranks fail because of it, and may end before it. The
# file holds the exit status after an error. That of sys.exit() is not known here.
_MARK_VARIABLE = "TALWEG_RUN_FAILS"


_registered: set[tuple[int, Callable[[], None]]] = set()


def _mark_end() -> None:
    path = os.environ.get(_MARK_VARIABLE)
    if not path:
        return
    now_ns = time.time_ns()
    with contextlib.suppress(OSError):
        with open(path, "w") as file:
            if getattr(sys, "last_value", None) is not None:  # The interpreter has printed it.
                file.write("1\n")
        os.utime(path, ns=(now_ns, now_ns))


def register(call: Callable[[], None]) -> None:
    """Has it called when the interpreter ends, or when a child of multiprocessing does: such a
    child, as torch.multiprocessing.spawn starts it, calls nothing of atexit's. A second call in
    one process does nothing.
    """
    pid = os.getpid()
    if (pid, call) in _registered:
        return
    _registered.add((pid, call))

    def at_exit() -> None:
        if os.getpid() == pid:  # The end of a fork is not the rank's.
            _mark_end()
        call()

    atexit.register(at_exit)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, call, exitpriority=0)
