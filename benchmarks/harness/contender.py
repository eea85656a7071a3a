# SPDX-License-Identifier: Apache-2.0
"""Contenders: jobs of several processes that wait for orders and answer them.

The lines between the harness and a worker are described in benchmarks/peers/control.h.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import processes

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 20.0
END_BY_ITSELF_S = 5.0


class ContenderFailed(Exception):
    """A contender has not carried out an order. The text names it, and has its last output."""


@dataclass(frozen=True)
class Command:
    """One process that a contender starts."""

    line: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    is_daemon: bool = False  # Whether it goes on when the workers have ended.


@dataclass
class Batch:
    """The outcome of one order, over all ranks."""

    rounds: int
    elapsed_s: float
    rounds_s: list[float]  # The time of each round at each rank.
    cpu_s: float
    # Bytes that each host's interface has sent; with one host, its loopback. Empty if unknown.
    wire_bytes: list[float]
    prepare_s: float = 0.0  # The time from the order until all were ready.
    workers_s: list[float] = field(default_factory=list)  # The time of each rank's rounds.
    cpu_s_of_programs: dict[str, float] = field(default_factory=dict)  # By process name.
    cpu_s_of_daemons: float = 0.0  # The share of the daemons and their children.


class _Worker:
    """The connection to one rank."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""
        self.rank = -1
        self.pid = -1

    def say(self, line: str) -> None:
        self._connection.sendall(line.encode() + b"\n")

    def hear(self, deadline_s: float) -> str:
        """Returns the rank's next line. Raises TimeoutError, or EOFError if the rank is gone."""
        while b"\n" not in self._buffer:
            self._connection.settimeout(max(0.01, deadline_s - time.monotonic()))
            received = self._connection.recv(1 << 20)
            if not received:
                raise EOFError
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def close(self) -> None:
        self._connection.close()


def _end(process: subprocess.Popen[bytes], by_itself_s: float, deadline_s: float) -> None:
    """Waits for the process, asks it to end, then kills it. Kills what is left of its group."""
    try:
        process.wait(by_itself_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline_s - time.monotonic()))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Contender:
    """A running job. Use it as a context manager, which ends everything that it has started."""

    def __init__(
        self,
        name: str,
        rank_count: int,
        commands: Sequence[Command],
        wire_pids: Sequence[int] = (),
        counts_loopback: bool = False,
    ) -> None:
        self.name = name
        self._rank_count = rank_count
        self._commands = commands
        self._counts_loopback = counts_loopback
        self.wire_pids = list(wire_pids)
        self._started: list[subprocess.Popen[bytes]] = []
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._workers: list[_Worker] = []
        self._directory = tempfile.TemporaryDirectory(prefix="contender-")
        self._log = Path(self._directory.name) / "log"
        self._pids: list[int] = []
        self._on_close: list[Callable[[], None]] = []
        self._idle_bytes = 0

    # ---- Life

    def __enter__(self) -> Contender:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        path = f"{self._directory.name}/control"
        environment = dict(os.environ, TALWEG_BENCH_CONTROL=path)
        environment["TALWEG_BENCH_CONTENDER"] = self.name.replace(" ", "-")
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("ab") as log:
            listener.bind(path)
            listener.listen(self._rank_count)
            for command in self._commands:
                process = subprocess.Popen(
                    command.line,
                    env={**environment, **command.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._started.append(process)
                if command.is_daemon:
                    self._daemons.append(process)
            self._accept(listener)
        self._pids = processes.family(process.pid for process in self._started)
        self._idle_bytes = sum(processes.memory_bytes(self._pids).values())
        if self._counts_loopback:
            self.wire_pids = [self._workers[0].pid]

    def _accept(self, listener: socket.socket) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while len(self._workers) < self._rank_count:
                if selector.select(0.2):
                    worker = _Worker(listener.accept()[0])
                    self._workers.append(worker)
                    words = self._hear(worker, deadline_s).split()
                    if len(words) != 4 or words[0] != "hello":
                        raise self._failure(f"said {words} instead of hello")
                    worker.rank, worker.pid = int(words[2]), int(words[3])
                for process in self._started:
                    if process.poll() is not None:
                        raise self._failure(f"ended with status {process.returncode} at its start")
                if time.monotonic() > deadline_s:
                    raise self._failure(f"did not start within {START_TIMEOUT_S:.0f} s")
        self._workers.sort(key=lambda worker: worker.rank)

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.say("quit")
            worker.close()
        deadline_s = time.monotonic() + END_TIMEOUT_S
        # Daemons end after the workers, which say goodbye to them. The scheduler started first and
        # ends last.
        workers = [process for process in self._started if process not in self._daemons]
        for process in [*workers, *reversed(self._daemons)]:
            by_itself_s = END_BY_ITSELF_S if self._workers and process in workers else 0.0
            _end(process, by_itself_s, deadline_s)
        self._started, self._daemons, self._workers = [], [], []
        self._directory.cleanup()
        for action in self._on_close:
            action()

    def on_close(self, action: Callable[[], None]) -> None:
        """Has `action` called when all processes have ended."""
        self._on_close.append(action)

    # ---- Measuring

    def measure(
        self, dtype: str, tensor_bytes: Sequence[int], warm_up: int, rounds: int, timeout_s: float
    ) -> Batch:
        """Has all ranks carry out one order. Raises ContenderFailed."""
        begin_s = time.monotonic()
        deadline_s = begin_s + timeout_s
        sizes = ",".join(str(size) for size in tensor_bytes)
        self._say(f"prepare {dtype} {warm_up} {rounds} {sizes}")
        for worker in self._workers:
            if self._hear(worker, deadline_s) != "ready":
                raise self._failure("did not say ready")
        prepare_s = time.monotonic() - begin_s
        self._pids = processes.family(process.pid for process in self._started)
        wire_before, cpu_before_s = self._wire_bytes(), processes.cpu_s(self._pids)
        self._say("go")
        answers = [self._hear_done(worker, deadline_s) for worker in self._workers]
        cpu_s = self._cpu_since(cpu_before_s)
        daemons = processes.family(process.pid for process in self._daemons)
        of_programs: dict[str, float] = {}
        for pid, spent_s in cpu_s.items():
            name = processes.program(pid)
            of_programs[name] = of_programs.get(name, 0.0) + spent_s
        wire = [float(now - then) for then, now in zip(wire_before, self._wire_bytes())]
        return Batch(
            rounds=rounds,
            elapsed_s=(max(end for _, end, _ in answers) - min(begin for begin, _, _ in answers))
            * 1e-9,
            rounds_s=[time_ns * 1e-9 for _, _, times_ns in answers for time_ns in times_ns],
            cpu_s=sum(cpu_s.values()),
            wire_bytes=wire,
            prepare_s=prepare_s,
            workers_s=[(end - begin) * 1e-9 for begin, end, _ in answers],
            cpu_s_of_programs=of_programs,
            cpu_s_of_daemons=sum(cpu_s.get(pid, 0.0) for pid in daemons),
        )

    def _hear_done(self, worker: _Worker, deadline_s: float) -> tuple[int, int, list[int]]:
        """Returns the begin, the end, and the time of each round, in nanoseconds."""
        words = self._hear(worker, deadline_s).split()
        if len(words) != 4 or words[0] != "done":
            raise self._failure(f"said '{' '.join(words)[:100]}' instead of done")
        return int(words[1]), int(words[2]), [int(word) for word in words[3].split(",")]

    def _cpu_since(self, before_s: dict[int, float]) -> dict[int, float]:
        now_s = processes.cpu_s(self._pids)
        return {pid: spent_s - before_s.get(pid, spent_s) for pid, spent_s in now_s.items()}

    def memory_held_bytes(self) -> int:
        """Returns the memory that it holds now, less what it held when it had started."""
        held = sum(processes.memory_bytes(self._pids).values())
        return max(0, held - self._idle_bytes)

    def memory_of_programs(self) -> dict[str, int]:
        """Returns the memory that it holds now, by process name."""
        held: dict[str, int] = {}
        for pid, count in processes.memory_bytes(self._pids).items():
            name = processes.program(pid)
            held[name] = held.get(name, 0) + count
        return held

    def idle_cores(self, seconds: float) -> dict[str, float]:
        """Returns how many cores the busiest process of each program uses without an order."""
        self._pids = processes.family(process.pid for process in self._started)
        before_s, begin_s = processes.cpu_s(self._pids), time.monotonic()
        time.sleep(seconds)
        after_s, elapsed_s = processes.cpu_s(self._pids), time.monotonic() - begin_s
        cores: dict[str, float] = {}
        for pid in after_s.keys() & before_s.keys():
            name = processes.program(pid)
            used = (after_s[pid] - before_s[pid]) / elapsed_s
            cores[name] = max(cores.get(name, 0.0), used)
        return cores

    def _wire_bytes(self) -> list[int]:
        """Returns the bytes that each host's interfaces have sent so far."""
        try:
            return [
                sum(
                    sent
                    for name, (_, sent) in processes.interface_bytes(pid).items()
                    if (name == "lo") == self._counts_loopback
                )
                for pid in self.wire_pids
            ]
        except OSError:
            return []

    def _say(self, line: str) -> None:
        try:
            for worker in self._workers:
                worker.say(line)
        except OSError as error:
            raise self._failure(f"cannot be told '{line[:60]}': {error}") from None

    def _hear(self, worker: _Worker, deadline_s: float) -> str:
        try:
            line = worker.hear(deadline_s)
        except TimeoutError:
            raise self._failure(f"rank {worker.rank} has not answered in time") from None
        except (EOFError, OSError):
            raise self._failure(f"rank {worker.rank} is gone") from None
        if line.startswith("failed "):
            raise self._failure(f"rank {worker.rank}: {line[len('failed ') :]}")
        return line

    def _failure(self, text: str) -> ContenderFailed:
        output = self._log.read_text(errors="replace").splitlines()[-12:]
        lines = "".join(f"\n    {line}" for line in output)
        return ContenderFailed(f"{self.name} {text}{lines}")
