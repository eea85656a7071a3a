# SPDX-License-Identifier: Apache-2.0
"""A rank without torch that trains by a State until it is told to stop, and outlives its agent.

    outlive.py DIRECTORY

Lines go to DIRECTORY/PID: "begins STEP", then "step STEP" after each step. The last line is
"weights DIGEST" or "error TYPE: TEXT".
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import talweg

_INIT_S = 120.0


def main() -> int:
    directory = Path(sys.argv[1])
    with (directory / str(os.getpid())).open("w", buffering=1) as log:
        talweg.init(timeout_s=_INIT_S)
        state = talweg.State(weights=np.zeros(50_000), step=0, stopped=False)

        def train(state: talweg.State) -> None:
            log.write(f"begins {state.step}\n")
            while not state.stopped:
                own = np.sin(state.weights + talweg.rank() + state.step)
                state.weights += talweg.push_pull(own, op=talweg.Op.SUM, name="gradient")
                told = np.array([(directory / "stop").exists()], np.int32)
                state.stopped = bool(talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0])
                state.step += 1
                state.end_step()
                state.save()
                log.write(f"step {state.step}\n")

        try:
            state.run(train, agent_wait_s=_INIT_S)
        except talweg.TalwegError as error:
            log.write(f"error {type(error).__name__}: {error}\n")
            return 3
        log.write(f"weights {hashlib.sha256(state.weights.tobytes()).hexdigest()[:16]}\n")
        talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
