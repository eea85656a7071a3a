# SPDX-License-Identifier: Apache-2.0
"""A rank whose node enters in two stages. It uses the calls of talweg.h directly.

In each step it counts the ranks that take part. Rank 0 of the full members also counts, beside its
steps, with each standby's first rank in rounds of a side tensor. A standby's rank does so until it
reads "ready" on its standard input, tells that, and goes on with steps. All end when one of them
reads "stop".
"""

from __future__ import annotations

import queue
import sys
import threading
import time

import numpy as np
from talweg import errors
from talweg._library import native

_I32 = 7
_SUM = 1
_WHOLE = (1, 1)


class _Rank:
    def __init__(self) -> None:
        self.connection = native.Connection(None, None, 60, standby=True)
        self.told: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.found, self.members = self.connection.membership()
        self.sides: dict[int, threading.Thread] = {}
        self.tensor: int | None = None

    def _read(self) -> None:
        for line in sys.stdin:
            self.told.put(line.strip())

    def _is_told(self, what: str) -> bool:
        with self.told.mutex:
            return what in self.told.queue

    def follow(self) -> None:
        self.found, self.members = self.connection.membership()
        self.connection.follow(self.found.epoch)
        standbys = [each.node for each in self.members if each.flags & native.MEMBER_STANDBY]
        print(
            f"epoch {self.found.epoch}: rank {self.connection.rank} of {self.connection.size}, "
            f"number {self.found.number}, standbys {standbys}",
            flush=True,
        )

    def step(self) -> bool:
        """Makes a step. Returns whether there is another one."""
        if self.tensor is None:
            self.tensor = self.connection.declare_collective("ranks", _I32, _SUM, _WHOLE, 0, [], 2)
        own = np.array([1, self._is_told("stop")], np.int32)
        round_ = self.connection.push_pull(self.tensor, own.ctypes.data, 0)
        self.connection.wait(self.tensor, round_, own.ctypes.data, None)
        steps = self.found.steps_base + self.connection.steps_ended() + 1
        print(f"step {steps}: {own[0]} ranks", flush=True)
        time.sleep(0.001)  # So the test can read the lines fast enough.
        self.connection.end_step()
        return own[1] == 0

    def train(self) -> None:
        while self.step():
            if self.connection.newest_epoch() != self.found.epoch:
                self.follow()
                self._meet()

    def _meet(self) -> None:
        """Meets each new standby, if this is the first rank. A standby is met by one rank only."""
        number = self.found.size
        for member in self.members:
            if not member.flags & native.MEMBER_STANDBY:
                continue
            if member.incarnation not in self.sides:
                arguments = (int(member.incarnation), number)
                thread = threading.Thread(target=self.beside, args=arguments, daemon=True)
                self.sides[member.incarnation] = thread
                if self.found.number == 0:
                    thread.start()
            number += member.rank_count

    def beside(self, incarnation: int, other: int) -> None:
        """Makes rounds with one standby, until it tells that it needs no more."""
        own = self.found.number
        try:
            tensor = self.connection.declare_collective(
                f"side.{incarnation}", _I32, _SUM, _WHOLE, 0, sorted({own, other}), 3, side=True
            )
            met, is_over = 0, False
            while not is_over:
                values = np.array([1, incarnation % 1000, self._is_told("ready")], np.int32)
                round_ = self.connection.push_pull(tensor, values.ctypes.data, 0)
                self.connection.wait(tensor, round_, values.ctypes.data, None)
                assert list(values[:2]) == [2, 2 * (incarnation % 1000)], values
                met, is_over = met + 1, bool(values[2])
                if met == 20:
                    print(f"met {incarnation}", flush=True)
            print(f"parted after {met}", flush=True)
        except errors.Aborted as error:
            print(f"aborted {incarnation}: {error}", flush=True)

    def stand_by(self) -> None:
        connection = self.connection
        print(
            f"standby of {connection.size}: rank {connection.rank} {self.found.rank}, "
            f"number {self.found.number}",
            flush=True,
        )
        for what, call in (("declares", self.step), ("ends a step", connection.end_step)):
            try:
                call()
            except errors.InvalidArgument as error:
                print(f"{what}: {error}", flush=True)
        [own] = [each for each in self.members if each.flags & native.MEMBER_STANDBY]
        self.beside(int(own.incarnation), 0)
        connection.ready()
        while connection.membership()[0].standby:
            connection.check_health()
            time.sleep(0.01)
        self.follow()


def main() -> int:
    rank = _Rank()
    try:
        if rank.found.standby:
            rank.stand_by()
        rank.train()
    except errors.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3
    rank.connection.close()
    print("ended", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
