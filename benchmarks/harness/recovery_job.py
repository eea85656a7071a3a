# SPDX-License-Identifier: Apache-2.0
"""A job on several hosts, whose processes are killed and start again by themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from netns import Network

from harness.contender import ContenderFailed
from harness.contenders import Programs, talweg_python
from harness.processes import family, program
from harness.recovery_log import Log, wrong_order

NODES = 3
_AGGREGATORS = 2
_SERVER = "server"
_SCHEDULER_PORT = 7447
_DEADLINE_S = 120.0
_POLL_S = 0.005


def _host(node: int) -> str:
    return f"node{node}"


class _Daemon:
    """A scheduler or aggregator. The code that kills it starts it again, as a service manager
    would.
    """

    def __init__(self, line: Sequence[str], log: Path, ready: Path) -> None:
        self._line = [*line, f"--ready_file={ready}"]
        self._log = log
        self._ready = ready
        self.start()

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._line, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def await_ready(self) -> None:
        end = time.monotonic() + _DEADLINE_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise ContenderFailed(f"{self._line[-2]}: {self._log.read_text()[-2000:]}")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Job:
    """A job of NODES nodes with one rank each. Each node has its own host. Scheduler and
    aggregators have another host.
    """

    def __init__(
        self,
        programs: Programs,
        program: str,
        arguments: Sequence[object],
        lease_ms: int,
        megabits_per_s: int = 0,
    ) -> None:
        """Each rank runs `program DIRECTORY ARGUMENTS`, which keeps recovery_rank.py's log.

        `megabits_per_s` is the rate of each host's link; 0 is as fast as this machine.
        """
        self._programs = programs
        self._rank = [str(programs.peers / program), *map(str, arguments)]
        self._lease_ms = lease_ms
        self._megabits_per_s = megabits_per_s
        self._stack = contextlib.ExitStack()
        self._runs: list[subprocess.Popen[bytes]] = []
        self._logs: dict[Path, Log] = {}
        self._aggregators: list[_Daemon] = []

    def __enter__(self) -> Job:
        with contextlib.ExitStack() as stack:
            self.network = stack.enter_context(Network([_SERVER, *map(_host, range(NODES))]))
            if self._megabits_per_s:
                for host in (_SERVER, *map(_host, range(NODES))):
                    self.network.shape(host, self._megabits_per_s * 1_000_000)
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="recovery-"))
            self._directory = Path(directory)
            self._ranks = self._directory / "ranks"
            self._ranks.mkdir()
            stack.callback(self._end_runs)
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _daemon(self, name: str, options: Sequence[str], stack: contextlib.ExitStack) -> _Daemon:
        tool = [*self.network.enter(_SERVER), str(self._programs.tool)]
        line = [*tool, *options, "--log_level=warning"]
        log, ready = self._directory / f"{name}.log", self._directory / f"{name}.ready"
        daemon = _Daemon(line, log, ready)
        stack.callback(daemon.kill)
        return daemon

    def _start(self, stack: contextlib.ExitStack) -> None:
        address = self.network.address(_SERVER)
        scheduler = f"{address}:{_SCHEDULER_PORT}"
        options = ["scheduler", f"--listen={scheduler}", "--insecure"]
        options += [f"--store_path={self._directory}/store", f"--lease_ms={self._lease_ms}"]
        self._scheduler = self._daemon("scheduler", options, stack)
        self._scheduler.await_ready()
        for number in range(_AGGREGATORS):
            options = ["aggregator", f"--scheduler={scheduler}", f"--name={number}"]
            options += [f"--listen={address}:0"]
            self._aggregators.append(self._daemon(f"aggregator{number}", options, stack))
        for daemon in self._aggregators:
            daemon.await_ready()
        program, *arguments = self._rank
        rank = talweg_python(self._programs, program, str(self._ranks), *arguments)
        for node in range(NODES):
            line = [*self.network.enter(_host(node)), str(self._programs.tool), "run"]
            line += [f"--scheduler={scheduler}", f"--nodes={NODES}", f"--node-rank={node}"]
            line += ["--loss-policy=continue", "--restarts=1000", "--restart-window-s=1"]
            line += ["--restart-pause-ms=200", "--no-prefix", "--", *rank.line]
            with self._run_log(node).open("wb") as log:
                self._runs.append(
                    subprocess.Popen(
                        line,
                        env={**os.environ, **rank.environment, "TALWEG_LOG_LEVEL": "error"},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )

    @property
    def directory(self) -> Path:
        return self._directory

    def _run_log(self, node: int) -> Path:
        return self._directory / f"run{node}.log"

    def said(self, node: int) -> str:
        """Returns the last output of the node's processes."""
        return self._run_log(node).read_text()[-1500:]

    def _end_runs(self) -> None:
        for run in self._runs:
            run.terminate()
        for run in self._runs:
            try:
                run.wait(_DEADLINE_S)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()

    # ---- The ranks' logs

    def newest(self, node: int) -> Log | None:
        """Returns the log, read up to now, of the node's newest process that has logged something.

        None if there is none.
        """
        for path in self._ranks.iterdir():
            if path.name != "stop" and path not in self._logs:
                self._logs[path] = Log(path)
        of_node = [log for log in self._logs.values() if log.node == node]
        for log in of_node:
            if not log.records:
                log.read()
        began = [log for log in of_node if log.records]
        if not began:
            return None
        newest = max(began, key=lambda log: log.records[0].end_ns)
        newest.read()
        return newest

    def log_of(self, node: int) -> Log:
        """Returns newest() of a node that must have one."""
        log = self.newest(node)
        if log is None:
            raise ContenderFailed(f"node {node} has logged nothing")
        return log

    def await_steps(self, count: int, since_ns: int) -> None:
        """Returns when each node's rank has ended `count` steps with all nodes since `since_ns`."""
        self._await(
            lambda: all(self._steps(node, since_ns) >= count for node in range(NODES)),
            f"{count} steps of {NODES} nodes",
        )

    def await_step(self, step: int) -> None:
        """Returns when each node's rank has ended that step."""

        def has_ended(node: int) -> bool:
            log = self.newest(node)
            return log is not None and log.records[-1].step >= step

        self._await(lambda: all(map(has_ended, range(NODES))), f"step {step}")

    def await_epoch_after(self, log: Log) -> None:
        """Returns when the process has ended a step with a newer epoch than its last one's."""
        log.read()
        last = log.records[-1]

        def is_newer() -> bool:
            log.read()
            return log.records[-1].epoch > last.epoch

        self._await(is_newer, f"epoch after {last.epoch}")

    def _steps(self, node: int, since_ns: int) -> int:
        log = self.newest(node)
        steps = log.steps_since(since_ns) if log is not None else []
        return sum(record.size == NODES for record in steps)

    def _await(self, is_true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _DEADLINE_S
        while not is_true():
            ended = [node for node, run in enumerate(self._runs) if run.poll() is not None]
            if ended or time.monotonic() > end:
                tails = [self.said(node) for node in range(NODES)]
                raise ContenderFailed(f"no {what}; ended: {ended}\n" + "\n---\n".join(tails))
            time.sleep(_POLL_S)

    # ---- Kills. Each returns when it is done. The killed process starts again by itself.

    def kill_rank(self, node: int) -> None:
        os.kill(self.log_of(node).pid, signal.SIGKILL)

    def kill_agent(self, node: int) -> None:
        for pid in family([self._runs[node].pid]):
            if program(pid) == "talweg-agent":
                os.kill(pid, signal.SIGKILL)
                return
        raise ContenderFailed(f"node {node} has no agent")

    def kill_aggregator(self, number: int) -> None:
        self._aggregators[number % _AGGREGATORS].kill()

    def start_aggregator(self, number: int) -> None:
        """Starts an aggregator. Returns when it serves again."""
        self._aggregators[number % _AGGREGATORS].start()
        self._aggregators[number % _AGGREGATORS].await_ready()

    def restart_scheduler(self) -> None:
        self._scheduler.kill()
        self._scheduler.start()

    @contextlib.contextmanager
    def cut_off(self, node: int) -> Iterator[None]:
        self.network.unplug(_host(node))
        try:
            yield
        finally:
            self.network.plug(_host(node))

    def stop(self) -> str:
        """Has the ranks end well. Returns what was wrong with a rank's steps; empty if nothing."""
        (self._ranks / "stop").touch()
        for node, run in enumerate(self._runs):
            try:
                status = run.wait(_DEADLINE_S)
            except subprocess.TimeoutExpired:
                return f"node {node} does not end"
            if status != 0:
                return f"node {node}: status {status}: {self.said(node)}"
        last = {self.log_of(node).records[-1].step for node in range(NODES)}
        for log in self._logs.values():
            log.read()
        wrong = [wrong_order(log) for log in self._logs.values()]
        if len(last) != 1:
            wrong.append(f"the ranks have ended at steps {sorted(last)}")
        return "; ".join(text for text in wrong if text)
