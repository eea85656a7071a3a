# SPDX-License-Identifier: Apache-2.0
"""Has horovod.run() train by Horovod's elastic mode until it is told to stop.

    hvd_run.py ARGUMENTS DIRECTORY

ARGUMENTS are run()'s, as Python. The program prints "results ..." or "raises TYPE TEXT". Ranks
write "step BATCH" to DIRECTORY/PID, and "news" after a change of the list of hosts. A rank on HOST
raises an error if DIRECTORY/fails.HOST exists, and after the training if
DIRECTORY/fails.at_end.HOST does. It kills itself if DIRECTORY/dies.HOST.LOCALRANK exists.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import talweg
from talweg.horovod import runner
from talweg.horovod.common import basics, elastic


def train(directory: Path, factor: int) -> tuple[int, int, str, int]:
    basics.init()
    host = os.environ["HOROVOD_HOSTNAME"]
    log = (directory / str(os.getpid())).open("w", buffering=1)

    def steps(state: Any) -> int:
        while not state.stopped:
            if (directory / f"fails.{host}").exists():
                raise ArithmeticError("it was told to fail")
            if (directory / f"dies.{host}.{basics.local_rank()}").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            told = np.array([int((directory / "stop").exists())], np.int32)
            state.stopped = bool(talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0])
            state.batch += 1
            state.commit()
            log.write(f"step {state.batch}\n")
            if state._last_updated_timestamp > 0:
                log.write("news\n")
        return int(state.batch > 0) * factor

    has_trained = elastic.run_fn(steps)(elastic.ObjectState(batch=0, stopped=False))
    found = (basics.rank(), basics.size(), host, has_trained)
    if (directory / f"fails.at_end.{host}").exists():
        raise ArithmeticError("it was told to fail at the end")
    basics.shutdown()
    return found


def main() -> None:
    arguments = {"args": (Path(sys.argv[2]),), "kwargs": {"factor": 7}, **eval(sys.argv[1])}
    try:
        results = runner.run(lambda *args, **kwargs: train(*args, **kwargs), **arguments)
        print("results", results, flush=True)
    except Exception as error:
        print("raises", type(error).__name__, error, flush=True)


if __name__ == "__main__":
    main()
