# SPDX-License-Identifier: Apache-2.0
"""Has one process train in several ways, one after another, for programs that outlive agents.

    PROGRAM DIRECTORY [--save] WAY...

Each way trains until DIRECTORY/stop.WAY exists. Lines go to DIRECTORY/PID: "begins STEP WAY" when
the function of run() is called, "step STEP WAY" after each step, "weights WAY DIGEST" at a way's
end. If DIRECTORY/kill.PID exists for a process, it kills the process that the file names during a
step.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import talweg


class Program:
    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("directory", type=Path)
        parser.add_argument("--save", action="store_true", help="keep a copy of each step's state")
        parser.add_argument("ways", nargs="+")
        self._told = parser.parse_args()
        self._log = (self._told.directory / str(os.getpid())).open("w", buffering=1)

    @property
    def ways(self) -> list[str]:
        return list(self._told.ways)

    def say(self, line: str) -> None:
        self._log.write(f"{line}\n")

    def kill_if_told(self) -> None:
        order = self._told.directory / f"kill.{os.getpid()}"
        if order.exists():
            os.kill(int(order.read_text()), signal.SIGKILL)
            order.unlink()

    def run(
        self,
        way: str,
        state: talweg.State,
        prepare: Callable[[], Callable[[int], None]],
        weights: Callable[[], Iterable[np.ndarray]],
    ) -> None:
        """Trains. `prepare` returns the function that makes a step, for the current ranks."""

        def train(state: Any) -> None:
            self.say(f"begins {state.step} {way}")
            make_step = prepare()
            gc.collect()  # Cycles may keep objects that a framework had of the lost agent.
            while not state.stopped:
                make_step(state.step)
                own = np.array([(self._told.directory / f"stop.{way}").exists()], np.int32)
                own = talweg.push_pull(own, op=talweg.Op.MAX, name=f"{way}.stop")
                state.stopped = bool(own[0])
                state.step += 1
                change = state.end_step()
                if self._told.save:
                    state.save()
                self.say(f"step {state.step} {way}")
                if change is not None:
                    make_step = prepare()

        state.run(train)
        digest = hashlib.sha256(b"".join(each.tobytes() for each in weights()))
        self.say(f"weights {way} {digest.hexdigest()[:16]}")


def main(
    train: Callable[[Program, str], None],
    init: Callable[[], Any] = talweg.init,
    shutdown: Callable[[], Any] = talweg.shutdown,
) -> None:
    """The whole program. It trains in each of the given ways."""
    program = Program()
    init()
    for way in program.ways:
        train(program, way)
    shutdown()
