# SPDX-License-Identifier: Apache-2.0
"""One rank of tool_test.py: rank 0 records a timeline of each agent while all ranks make rounds.

Its arguments are the tool and a directory for the timelines. The first timeline is of one second. The
second ends with an interrupt.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import talweg
from talweg import Op

_TOOL, _DIRECTORY = sys.argv[1:]


def _agents() -> list[str]:
    told = json.loads(subprocess.check_output([_TOOL, "status", "--json"]))
    view = told["jobs"][0]["agents"]["0"]["view"]
    return [member["admin_address"] for member in view["members"]]


def _is_recorded(agent: str) -> bool:
    line = [_TOOL, "status", f"--agent={agent}", "--json"]
    return bool(json.loads(subprocess.check_output(line))["tracing"])


def _record() -> None:
    for number, agent in enumerate(_agents()):
        seconds = "1" if number == 0 else "3600"
        file = Path(_DIRECTORY) / f"{number}.json"
        line = [_TOOL, "trace", f"--agent={agent}", f"--seconds={seconds}", str(file)]
        with subprocess.Popen(line) as tool:
            if number > 0:
                while tool.poll() is None and not _is_recorded(agent):
                    pass
                tool.send_signal(signal.SIGINT)
        if tool.returncode != 0 or _is_recorded(agent):
            raise AssertionError(f"the tool ended with {tool.returncode}")


def _go_on(recording: Future[None] | None) -> None:
    """Makes rounds until the recording is over."""
    gradient: np.ndarray = np.ones(10_000, np.float32)
    while True:
        talweg.push_pull(gradient, name="gradient")
        is_over = recording is not None and recording.done()
        if talweg.push_pull(np.array([is_over], np.int32), name="is over", op=Op.SUM)[0]:
            return


def main() -> int:
    talweg.init()
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(_record) if talweg.rank() == 0 else None
        _go_on(recording)
        if recording is not None:
            recording.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
