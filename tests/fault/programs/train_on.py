# SPDX-License-Identifier: Apache-2.0
"""A rank that trains a small model until it is told to stop, and outlives its agent.

    train_on.py DIRECTORY [--save] [--agent-wait S] [--ballast MB] [--pause S]

A step's gradient depends on the weights and the samples, so ranks that have made other steps have
other weights. Lines go to DIRECTORY/PID: "begins STEP JOINED RANK SIZE", "takes EPOCH SAMPLE,..."
before each step, "step STEP" after it, and "weights DIGEST" at the end. A rank that finds
DIRECTORY/stop tells all others. If DIRECTORY/kill.PID exists for a rank, the rank kills the process
that the file names, so many seconds after it has begun to give its state away. With `--pause` a
step takes so much longer, without using the CPUs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import talweg

_SAMPLES = 96
_BATCH = 4
_WEIGHTS = 50_000


class MortalState(talweg.State):
    """A State during whose transfer the agent may be killed."""

    def pack(self) -> Sequence[bytes | memoryview]:
        order = Path(sys.argv[1]) / f"kill.{os.getpid()}"
        if order.exists():
            pid, delay_s = order.read_text().split()
            order.unlink()
            threading.Timer(float(delay_s), os.kill, (int(pid), signal.SIGKILL)).start()
        return super().pack()


class Trainer:
    def __init__(self, directory: Path, saves: bool, pause_s: float) -> None:
        self._pause_s = pause_s
        self._stop = directory / "stop"
        self._saves = saves
        self._log = (directory / str(os.getpid())).open("w", buffering=1)

    def say(self, line: str) -> None:
        self._log.write(f"{line}\n")

    def train(self, state: talweg.State) -> None:
        self.say(f"begins {state.step} {state.joined} {talweg.rank()} {talweg.size()}")
        while not state.stopped:
            for indices in state.sampler:
                self._step(state, indices)
                if state.stopped:
                    return
            state.sampler.set_epoch(state.sampler.epoch + 1)

    def _step(self, state: talweg.State, indices: list[int]) -> None:
        self.say(f"takes {state.sampler.epoch} {','.join(map(str, indices))}")
        time.sleep(self._pause_s)
        gradient: np.ndarray = np.zeros(_WEIGHTS, np.float32)
        for index in indices:
            gradient += np.sin(state.weights * (index + 1) + state.step)
        total = talweg.push_pull(gradient, op=talweg.Op.SUM, name="gradient")
        state.weights -= np.float32(0.01) * total
        # The second round of the step has no name.
        own = np.array([self._stop.exists()], np.int32)
        state.stopped = bool(talweg.push_pull(own, op=talweg.Op.MAX)[0])
        state.step += 1
        state.end_step()
        if self._saves:
            state.save()
        self.say(f"step {state.step}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--save", action="store_true", help="keep a copy of the state each step")
    parser.add_argument("--agent-wait", type=float)
    parser.add_argument("--ballast", type=int, default=0, help="MB of state beside the weights")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds")
    arguments = parser.parse_args()
    talweg.init()
    trainer = Trainer(arguments.directory, arguments.save, arguments.pause)
    state = MortalState(
        weights=np.linspace(-1, 1, _WEIGHTS, dtype=np.float32),
        sampler=talweg.ElasticSampler(_SAMPLES, batch_size=_BATCH, seed=3),
        ballast=np.zeros(arguments.ballast << 20, np.uint8),
        step=0,
        stopped=False,
    )
    talweg.on_view_change(lambda change: trainer.say(f"view {change.after.size}"))
    try:
        state.run(trainer.train, agent_wait_s=arguments.agent_wait)
    except talweg.TalwegError as error:
        trainer.say(f"error {type(error).__name__}: {error}")
        return 3
    trainer.say(f"weights {hashlib.sha256(state.weights.tobytes()).hexdigest()[:16]}")
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
