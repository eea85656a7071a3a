# SPDX-License-Identifier: Apache-2.0
"""A worker's side of ./bench, for Python. control.h describes the lines."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Order:
    """An order of the harness: what to measure."""

    dtype: str
    warm_up_rounds: int
    rounds: int
    sizes: list[int]


class Control:
    """The connection to the harness."""

    def __init__(self, rank: int) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ["TALWEG_BENCH_CONTROL"])
        self._file = connection.makefile("rw")
        self._say(f"hello {os.environ['TALWEG_BENCH_CONTENDER']} {rank} {os.getpid()}")

    def serve(self, prepare: Callable[[Order], None], run_round: Callable[[], object]) -> None:
        """Carries out orders until it is told to quit.

        Calls `prepare` if an order differs from the last one.
        """
        previous = None
        try:
            while words := self._hear().split():
                _, dtype, warm_up, rounds, sizes = words
                order = Order(dtype, int(warm_up), int(rounds), [int(n) for n in sizes.split(",")])
                if order != previous:
                    prepare(order)
                    previous = order
                if not self._measure(order, run_round):
                    break
        except Exception as error:
            self._say(
                f"failed {type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
            )
            raise

    def _measure(self, order: Order, run_round: Callable[[], object]) -> bool:
        """Carries out one order. Returns whether another one may come."""
        for _ in range(order.warm_up_rounds):
            run_round()
        self._say("ready")
        if not self._hear():
            return False
        times_ns = [time.monotonic_ns()]
        for _ in range(order.rounds):
            run_round()
            times_ns.append(time.monotonic_ns())
        rounds_ns = ",".join(str(end - begin) for begin, end in zip(times_ns, times_ns[1:]))
        self._say(f"done {times_ns[0]} {times_ns[-1]} {rounds_ns}")
        return True

    def _say(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()

    def _hear(self) -> str:
        line = self._file.readline().strip()
        return "" if line == "quit" else line
