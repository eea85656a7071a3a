# SPDX-License-Identifier: Apache-2.0
"""One rank of tool_test.py. Ranks 1 and 2 of 3 delay a round until `talweg status` shows that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import talweg

TIMEOUT_S = 120


def waiting_for(tool: str, ranks: list[int], nodes: list[int]) -> dict[str, Any]:
    """Asks until the open round of 'held' waits for exactly these ranks and nodes."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        done = subprocess.run(
            [tool, "status", "--json"],
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        status: dict[str, Any] = json.loads(done.stdout)
        for each in status["jobs"][0]["waiting_rounds"]:
            if (each["tensor"], each["ranks"], each["nodes"]) == ("held", ranks, nodes):
                return status
        assert time.monotonic() < deadline, status["jobs"]


def main() -> int:
    tool, gates = sys.argv[1], Path(sys.argv[2])
    talweg.init()
    rank = talweg.rank()
    ones: np.ndarray = np.ones(1000, np.float32)
    talweg.declare("held", np.float32, ones.size, op=talweg.Op.SUM)
    talweg.barrier()
    if rank > 0:
        (gates / str(rank)).read_bytes()  # It reads a named pipe, and waits until rank 0 writes.
    handle = talweg.push_pull_async(ones, op=talweg.Op.SUM, name="held")
    if rank == 0:
        waiting_for(tool, ranks=[1], nodes=[])
        (gates / "1").write_bytes(b"go")
        status = waiting_for(tool, ranks=[], nodes=[1])
        text = subprocess.run([tool, "status"], capture_output=True, text=True, check=True).stdout
        print(text)
        job = status["jobs"][0]["job"]
        assert job["summary"]["state"] == "JOB_STATE_RUNNING", job
        assert [each["member"]["rank_count"] for each in job["members"]] == [2, 1], job
        assert "job 'run'" in text and "held" in text and "node 1" in text, text
        one = os.environ["TALWEG_RUN_AGENTS"].split(",")[0]
        agent = subprocess.run(
            [tool, "status", f"--agent={one}"], capture_output=True, text=True, check=True
        )
        assert "of job 'run', active" in agent.stdout, agent.stdout
        (gates / "2").write_bytes(b"go")
    assert (talweg.synchronize(handle, timeout_s=TIMEOUT_S) == 3).all()
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
