# SPDX-License-Identifier: Apache-2.0
"""What dies is named at every rank, soon, and nothing hangs: a rank, an agent, an aggregator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

_RUNFILES = Path(os.environ["RUNFILES_DIR"]) / "talweg"
_PROGRAM = _RUNFILES / "tests" / "integration" / "programs" / "until_failure.py"
# Far above what is measured: it ends a hang.
_GENEROUS_S = 120.0


class Cluster:
    """A scheduler, aggregators and agents as processes of their own, with their ranks."""

    def __init__(self, nodes: int, ranks: int, aggregators: int) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="talweg-", dir="/tmp")
        self.path = Path(self._directory.name)
        self._processes: list[subprocess.Popen[str]] = []
        self.scheduler = self._daemon("scheduler", "s", "--listen=127.0.0.1:0", "--in_memory=true")
        address = self.address("s", "listen")
        self.aggregators = [
            self._daemon("aggregator", f"a{i}", f"--scheduler={address}", f"--name=pool-{i}")
            for i in range(aggregators)
        ]
        for i in range(aggregators):
            self.address(f"a{i}", "data")
        self.agents = [
            self._daemon(
                "agent",
                f"n{node}",
                f"--scheduler={address}",
                f"--node_rank={node}",
                f"--rank_count={ranks}",
                f"--min_members={nodes}",
                f"--max_members={nodes}",
                f"--socket_path={self.path}/n{node}.sock",
            )
            for node in range(nodes)
        ]
        self.ranks: list[list[subprocess.Popen[str]]] = []
        for node in range(nodes):
            self.address(f"n{node}", "socket")
            self.ranks.append([self._rank(node) for _ in range(ranks)])

    def _daemon(self, name: str, file: str, *options: str) -> subprocess.Popen[str]:
        with (self.path / f"{file}.log").open("w") as log:
            process = subprocess.Popen(
                [
                    _RUNFILES / "services" / name / f"talweg-{name}",
                    f"--ready_file={self.path}/{file}.ready",
                    "--drain_timeout_ms=1000",
                    *options,
                ],
                stdout=log,
                stderr=log,
                text=True,
            )
        self._processes.append(process)
        return process

    def _rank(self, node: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", _PROGRAM],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(os.environ, TALWEG_AGENT_SOCKET=f"{self.path}/n{node}.sock"),
        )
        self._processes.append(process)
        return process

    def address(self, file: str, what: str) -> str:
        ready = self.path / f"{file}.ready"
        deadline = time.monotonic() + _GENEROUS_S
        while not ready.exists():
            if time.monotonic() > deadline:
                raise AssertionError(f"{file} does not serve:\n{self.logs()}")
            time.sleep(0.01)
        return json.loads(ready.read_text())["addresses"][what]

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text()[-4000:]}" for log in self.path.glob("*.log")
        )

    def wait_until_running(self) -> None:
        for ranks in self.ranks:
            for rank in ranks:
                assert rank.stdout is not None
                line = rank.stdout.readline()
                if line != "running\n":
                    raise AssertionError(f"{line}{rank.stdout.read()}\n{self.logs()}")

    def last_words(self, skip: list[subprocess.Popen[str]]) -> list[str]:
        """What the ranks said when they failed, in rank order."""
        words = []
        for ranks in self.ranks:
            for rank in ranks:
                if rank in skip:
                    continue
                try:
                    output, _ = rank.communicate(timeout=_GENEROUS_S)
                except subprocess.TimeoutExpired:
                    raise AssertionError(f"a rank hangs\n{self.logs()}") from None
                words.append(output)
        return words

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._directory.cleanup()


class FailuresTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = Cluster(nodes=2, ranks=2, aggregators=2)
        self.addCleanup(self.cluster.close)
        self.cluster.wait_until_running()

    def check_words(self, pattern: str, skip: list[subprocess.Popen[str]]) -> None:
        for words in self.cluster.last_words(skip):
            self.assertRegex(words, pattern, self.cluster.logs())

    def test_a_killed_rank_is_named_at_all_others(self) -> None:
        victim = self.cluster.ranks[1][0]
        victim.kill()
        self.check_words(rf"failed JobFailed: .*pid {victim.pid}", [victim])
        # The agents end with their job; the pool and the scheduler go on.
        for agent in self.cluster.agents:
            self.assertNotEqual(agent.wait(_GENEROUS_S), 0)
        for daemon in [self.cluster.scheduler, *self.cluster.aggregators]:
            self.assertIsNone(daemon.poll())

    def test_a_killed_agent_is_named_at_the_other_node(self) -> None:
        self.cluster.agents[1].kill()
        for words in self.cluster.last_words(self.cluster.ranks[1]):
            self.assertRegex(words, r"failed JobFailed: .*node 1", self.cluster.logs())
        for words in self.cluster.last_words(self.cluster.ranks[0]):
            self.assertRegex(words, r"failed AgentLost", self.cluster.logs())

    def test_a_killed_aggregator_is_named_at_all_ranks(self) -> None:
        self.cluster.aggregators[1].kill()
        self.check_words(r"failed JobFailed: .*pool-1", [])

    def test_a_killed_scheduler_is_not_missed(self) -> None:
        self.cluster.scheduler.kill()
        self.cluster.scheduler.wait()
        # Steps go on: a rank that dies now is still seen, by its own agent.
        victim = self.cluster.ranks[0][1]
        victim.kill()
        words, _ = self.cluster.ranks[0][0].communicate(timeout=_GENEROUS_S)
        self.assertRegex(words, rf"failed JobFailed: .*pid {victim.pid}")

    def test_sigterm_to_an_agent_says_who_ends(self) -> None:
        self.cluster.agents[0].send_signal(signal.SIGTERM)
        self.check_words(r"failed JobFailed: .*node 0", [])


if __name__ == "__main__":
    unittest.main()
