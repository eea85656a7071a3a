# SPDX-License-Identifier: Apache-2.0
"""The process between safe_shell_exec.execute() and its command, which it ends.

    python _middleman.py GRACE_S COMMAND

When stdin closes, the caller wants the command to end, or is gone. This process then ends the
command's process group by SIGTERM, and by SIGKILL after GRACE_S seconds. Its exit status is the
command's. This is a file and no module, as _rank.py is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

_TURN_S = 0.02


def _end(group: int, grace_s: float) -> None:
    end_s = time.monotonic() + grace_s
    number = signal.SIGTERM
    try:
        while True:
            os.killpg(group, number)
            while time.monotonic() < end_s:
                os.killpg(group, 0)
                time.sleep(_TURN_S)
            number = signal.SIGKILL
            end_s = time.monotonic() + grace_s
    except ProcessLookupError:  # None is left.
        return


def main() -> None:
    grace_s, command = float(sys.argv[1]), sys.argv[2]
    shell = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, start_new_session=True
    )

    def wait_for_the_end() -> None:
        while os.read(0, 64):
            pass
        is_ending.set()
        _end(shell.pid, grace_s)

    is_ending = threading.Event()
    thread = threading.Thread(target=wait_for_the_end, daemon=True)
    thread.start()
    status = shell.wait()
    if is_ending.is_set():
        thread.join()
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
