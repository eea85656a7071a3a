# SPDX-License-Identifier: Apache-2.0
"""Calls hvd.join() in a job whose nodes may come and go. See hvd_join_elastic_test.py.

    hvd_join_elastic.py DIRECTORY

In each turn a rank joins while the others go on, with names that it has never used, and without
names. Lines go to DIRECTORY/PID: "begins TURN", "last RANK of SIZE after RANK" after join(), "step
TURN" after each turn, "refused" if commit() says that a rank has joined, and at the end "weights
TOTAL" with the sum of all results.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch


class Program:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = (directory / str(os.getpid())).open("w", buffering=1)

    def say(self, line: str) -> None:
        self._log.write(f"{line}\n")

    def stops(self) -> bool:
        told = torch.tensor([int((self._directory / "stop").exists())])
        return bool(hvd.allreduce(told, op=hvd.Max, name="stop"))

    def turn(self, state: Any) -> None:
        """One rank joins at once. The others first make calls that it has never made."""
        size, first = hvd.size(), state.turn % hvd.size()
        if hvd.rank() != first:
            for name in (None, f"new.{state.turn}", "settled"):
                found = hvd.allreduce(torch.full((3,), 2.0), name=name, op=hvd.Sum)
                # Some ranks may be lost during the call.
                assert 2.0 <= float(found[0]) <= 2.0 * (size - 1), (name, found)
                state.total += float(found[0])
            large = torch.full((5000,), 1.0)
            handles = [hvd.allreduce_async(large, name=f"{state.turn}.{i}") for i in range(2)]
            for handle in handles:
                hvd.synchronize(handle)
            self.commit_is_refused(state)
        self.say(f"last {hvd.join()} of {size} after {first}")
        # The first rank has not taken part in the sums.
        told = hvd.allreduce(torch.tensor([state.total], dtype=torch.float64), op=hvd.Max)
        state.total = float(told)

    def commit_is_refused(self, state: Any) -> None:
        if hvd.size() == 1 or (self._directory / "refused").exists():
            return
        try:
            state.commit()
        except ValueError as refusal:
            assert "in hvd.join()" in str(refusal), refusal
            self.say("refused")


def main() -> None:
    program = Program(Path(sys.argv[1]))
    hvd.init()

    @hvd.elastic.run
    def train(state: Any) -> None:
        program.say(f"begins {state.turn}")
        while not state.stopped:
            program.turn(state)
            state.stopped = program.stops()
            state.turn += 1
            state.commit()
            program.say(f"step {state.turn}")

    state = hvd.elastic.ObjectState(turn=0, total=0.0, stopped=False)
    train(state)
    program.say(f"weights {state.total}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
