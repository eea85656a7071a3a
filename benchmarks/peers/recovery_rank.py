# SPDX-License-Identifier: Apache-2.0
"""A rank of the scenario `recovery`: it makes steps until it is told to stop, and keeps a log.

    recovery_rank.py DIRECTORY GRADIENT_BYTES STATE_BYTES

Its gradient is ones, so after each step every weight is the number of steps. If a step was lost or
done twice, the rank ends with status 4. The log is DIRECTORY/NODE.PID, with the records of
recovery_record.py. When DIRECTORY/stop exists, all ranks end after the same step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import talweg
from recovery_record import BEGINS, COMES, RECORD, STEP


class Log:
    def __init__(self, directory: Path) -> None:
        path = directory / f"{os.environ['RANK']}.{os.getpid()}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: int, step: int, begin_ns: int) -> None:
        now = time.monotonic_ns()
        os.write(self._fd, RECORD.pack(what, step, begin_ns, now, talweg.epoch(), talweg.size()))


class LoggedState(talweg.State):
    """A State that logs when its rank is there, before it has the others' state."""

    log: Log

    def begin(self) -> bool:
        self.log.write(COMES, 0, time.monotonic_ns())
        return super().begin()


class LostStep(Exception):
    """The weights lack a step, or have it twice."""


def _check(state: talweg.State, *weights: float) -> None:
    for weight in weights:
        if weight != state.step:
            raise LostStep(f"after step {state.step} a weight is {weight}")


def main() -> int:
    directory, gradient_bytes, state_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    gradient: np.ndarray = np.ones(gradient_bytes // 4, np.float32)
    talweg.init()
    log = Log(directory)
    state = LoggedState(
        weights=np.zeros_like(gradient),
        ballast=np.zeros(state_bytes, np.uint8),
        step=0,
        stopped=False,
    )
    # It is a class attribute, because attributes of an instance are values, which travel.
    LoggedState.log = log

    def train(state: talweg.State) -> None:
        _check(state, state.weights.min(), state.weights.max())
        log.write(BEGINS, state.step, time.monotonic_ns())
        while not state.stopped:
            begin_ns = time.monotonic_ns()
            state.weights += talweg.push_pull(gradient, name="gradient")
            own = np.array([(directory / "stop").exists()], np.int32)
            state.stopped = bool(talweg.push_pull(own, op=talweg.Op.MAX, name="stop")[0])
            state.step += 1
            _check(state, state.weights[0], state.weights[-1])
            state.end_step()
            log.write(STEP, state.step, begin_ns)

    try:
        state.run(train)
        _check(state, state.weights.min(), state.weights.max())
    except LostStep as lost:
        print(lost, file=sys.stderr)
        return 4
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
