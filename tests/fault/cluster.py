# SPDX-License-Identifier: Apache-2.0
"""Starts daemons and ranks of a job, one process each, for tests that kill them.

This process starts every other one, knows its PID, and ends it when the `with` block is left, also
when the test fails. No port and no path is fixed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Union

from torch_forks import Fork, torch_forks

RUNFILES = Path(os.environ["RUNFILES_DIR"]) / "talweg"
TOOL = RUNFILES / "clients" / "cli" / "talweg"
PROGRAMS = RUNFILES / "tests" / "fault" / "programs"
# It ends a hang. Nothing here takes a tenth of it.
DEADLINE_S = 120.0


def children(pid: int) -> list[int]:
    """Returns the processes that a process has started; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


Process = Union["subprocess.Popen[str]", Fork]


class Daemon:
    """A started daemon: its process, and the addresses that it announced."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], ready: dict[str, Any]) -> None:
        self.name = name
        self.process = process
        self.addresses: dict[str, str] = ready["addresses"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)


class Rank:
    """A rank's process. Its lines of output go to a queue."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put("<end>")

    def tell(self, line: str) -> None:
        """Writes a line to the program's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait_for(self, text: str) -> str:
        """Returns the next line that contains `text`.

        Raises AssertionError with all lines if none comes.
        """
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with '{text}' in time: {self.seen}") from None
            self.seen.append(line)
            if line == "<end>":
                raise AssertionError(f"ended without a line with '{text}': {self.seen}")
            if text in line:
                return line

    def goes_on(self, steps: int = 20) -> None:
        """Returns when the program has made `steps` more steps."""
        for _ in range(self.lines.qsize()):
            self.wait_for("")
        for _ in range(steps):
            self.wait_for("step ")


class Cluster:
    """Starts the processes of a job, and ends them all at the end of its `with` block."""

    def __init__(self, with_torch: bool = False) -> None:
        """With `with_torch` ranks are forks of a process that has imported it (torch_forks.py)."""
        self._with_torch = with_torch
        self._stack = contextlib.ExitStack()
        self._processes: list[subprocess.Popen[Any] | Fork] = []
        # The options that `talweg status` needs to be admitted.
        self.tool_options: list[str] = []

    def __enter__(self) -> Cluster:
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._logs = self.directory / "logs"
        self._logs.mkdir()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(DEADLINE_S)
        if kind is not None:
            for log in sorted(self._logs.iterdir()):
                print(f"--- {log.name}\n{log.read_text()[-4000:]}", file=sys.stderr)
        self._stack.close()

    def log(self, daemon: Daemon) -> str:
        return (self._logs / daemon.name).read_text()

    def wait_for_log(self, daemon: Daemon, pattern: str) -> None:
        """Returns when the daemon has logged text that matches. It must not end before."""
        end = time.monotonic() + DEADLINE_S
        while re.search(pattern, self.log(daemon)) is None:
            assert daemon.process.poll() is None, self.log(daemon)[-2000:]
            assert time.monotonic() < end, self.log(daemon)[-2000:]
            time.sleep(0.01)

    def start(
        self, service: str, name: str, options: Sequence[str], enter: Sequence[str] = ()
    ) -> Daemon:
        """Starts talweg-`service`, and returns when it serves. `enter` goes before the command."""
        read_fd, write_fd = os.pipe()
        binary = RUNFILES / "services" / service / f"talweg-{service}"
        log = (self._logs / name).open("ab")
        process = subprocess.Popen(
            [*enter, str(binary), f"--ready_fd={write_fd}", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[write_fd],
        )
        log.close()
        os.close(write_fd)
        self._processes.append(process)
        with os.fdopen(read_fd, "rb") as pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            line = pipe.readline() if selector.select(DEADLINE_S) else b""
        if not line:
            process.kill()
            text = (self._logs / name).read_text()
            raise AssertionError(f"{name} did not get ready: {text[-4000:]}")
        return Daemon(name, process, json.loads(line))

    def scheduler(self, options: Sequence[str] = ()) -> Daemon:
        return self.start("scheduler", "scheduler", ["--listen=127.0.0.1:0", *options])

    def aggregator(self, scheduler: str, name: str, options: Sequence[str] = ()) -> Daemon:
        """Starts an aggregator. Returns when it has registered and its stream is open, so that the
        scheduler takes it into new views.
        """
        own = [f"--scheduler={scheduler}", f"--name={name}"]
        aggregator = self.start("aggregator", f"aggregator.{name}", [*own, *options])
        end = time.monotonic() + DEADLINE_S
        while not self._is_attached(scheduler, aggregator):
            assert aggregator.process.poll() is None, self.log(aggregator)[-2000:]
            assert time.monotonic() < end, self.log(aggregator)[-2000:]
            time.sleep(0.01)
        return aggregator

    def _is_attached(self, scheduler: str, aggregator: Daemon) -> bool:
        line = [str(TOOL), "status", f"--scheduler={scheduler}", "--json", "--timeout-ms=2000"]
        line += self.tool_options
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        pool = json.loads(done.stdout)["pool"] if done.returncode == 0 else []
        return any(
            each["attached"]
            and each["aggregator"]["admin_address"] == aggregator.addresses["admin"]
            for each in pool
        )

    def agent(
        self, node: int, options: Sequence[str], enter: Sequence[str] = (), name: str = ""
    ) -> Daemon:
        name = name or f"agent{node}"
        socket = self.directory / f"{name}.sock"
        return self.start("agent", name, [f"--socket_path={socket}", *options], enter)

    def rank(
        self,
        agent: Daemon,
        program: str,
        arguments: Sequence[str] = (),
        enter: Sequence[str] = (),
    ) -> Rank:
        environment = dict(os.environ, TALWEG_AGENT_SOCKET=agent.addresses["socket"])
        line = [str(PROGRAMS / program), *arguments]
        if self._with_torch:
            assert not enter, "a fork is where its parent is"
            fork = torch_forks().start(line, environment)
            self._processes.append(fork)
            return Rank(fork)
        return Rank(self.process([*enter, sys.executable, "-P", "-u", *line], environment))

    def process(
        self, line: Sequence[str], environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a command that reads and writes lines."""
        process = subprocess.Popen(
            line,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        return process

    def stop(self, process: subprocess.Popen[Any] | Fork) -> None:
        process.send_signal(signal.SIGSTOP)

    def resume(self, process: subprocess.Popen[Any] | Fork) -> None:
        process.send_signal(signal.SIGCONT)


class Job:
    """A whole job: a scheduler, aggregators, and agents with ranks that push in a loop."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Sequence[int] = (1, 1),
        aggregators: int = 1,
        program: str = "steady.py",
        store: Path | None = None,
        scheduler_options: Sequence[str] = (),
        aggregator_options: Sequence[str] = (),
        agent_options: Sequence[str] = (),
        options_of_agent: Callable[[int], Sequence[str]] = lambda _: (),
        beside: Job | None = None,
        name: str = "default",
    ) -> None:
        """`beside` is a job of another name, whose scheduler and aggregators this job uses too."""
        self.store_options = [f"--store_path={store}"] if store else ["--in_memory"]
        if beside is None:
            self.scheduler = cluster.scheduler([*self.store_options, *scheduler_options])
            address = self.scheduler.addresses["listen"]
            self.aggregators = [
                cluster.aggregator(address, f"a{i}", aggregator_options) for i in range(aggregators)
            ]
        else:
            self.scheduler, self.aggregators = beside.scheduler, beside.aggregators
            address = self.scheduler.addresses["listen"]
        self.agents = []
        self.ranks: list[list[Rank]] = []
        for node, count in enumerate(nodes):
            agent = cluster.agent(
                node,
                [
                    f"--scheduler={address}",
                    f"--node_rank={node}",
                    f"--rank_count={count}",
                    f"--min_members={len(nodes)}",
                    f"--max_members={len(nodes)}",
                    f"--name=node{node}",
                    f"--job={name}",
                    *agent_options,
                    *options_of_agent(node),
                ],
                name=f"{name}.agent{node}",
            )
            self.agents.append(agent)
            self.ranks.append([cluster.rank(agent, program) for _ in range(count)])
        for rank in self.all_ranks():
            rank.wait_for("step 3")

    def all_ranks(self) -> list[Rank]:
        return [rank for ranks in self.ranks for rank in ranks]
