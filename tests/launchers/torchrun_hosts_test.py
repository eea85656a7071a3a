# SPDX-License-Identifier: Apache-2.0
"""Tests torchrun on several hosts. The nodes find each other through its store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import unittest

import job
from launcher_hosts import HostsTest
from launcher_site import backend, in_fork, rank_with_torch, torchrun
from outliving_site import OutlivingTest

_PORT = "29500"  # No other process uses it, because only this test has these hosts.


class _TorchrunTest(HostsTest):
    restarts = 0

    def torchrun(self, counts: tuple[int, int], *program: str, status: int | None = 0) -> str:
        return self.finish(*self.start_torchrun(counts, *program), status=status)

    def start_torchrun(
        self, counts: tuple[int, int], *program: str, **variables: str
    ) -> list[subprocess.Popen[str]]:
        started = []
        first = self.network.address(self.hosts[0])
        for node, host in enumerate(self.hosts):
            meeting = [f"--master-addr={first}", f"--master-port={_PORT}"]
            if (
                self.restarts > 0
            ):  # Nodes that meet in this way start their ranks again when others do.
                meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}:{_PORT}"]
                meeting += ["--rdzv-id=test", f"--rdzv-conf=is_host={node == 0}"]
            options = [
                f"--nnodes={len(self.hosts)}",
                f"--node-rank={node}",
                f"--nproc-per-node={counts[node]}",
                f"--local-addr={self.network.address(host)}",
                *meeting,
                f"--max-restarts={self.restarts}",
            ]
            line = [*self.on(host), *torchrun(), *options, *program]
            started.append(self.start(line, **variables))
        return started


class TorchrunOnHostsTest(_TorchrunTest):
    def test_two_hosts(self) -> None:
        self.require_ranks(self.torchrun((2, 1), "--no-python", *rank_with_torch(), "sum"), [2, 1])
        self.require_nothing_left()

    def test_the_backend_of_torch(self) -> None:
        output = self.torchrun((1, 1), "--no-python", *backend())
        self.assertEqual(output.count("of 2: sum is right"), 2, output)
        self.require_nothing_left()

    def test_several_lives(self) -> None:
        self.require_ranks(
            self.torchrun((1, 1), "--no-python", *rank_with_torch(), "again"), [1, 1]
        )
        self.require_nothing_left()

    def test_a_rank_dies(self) -> None:
        output = self.torchrun((1, 1), "--no-python", *rank_with_torch(), "die", "0", status=None)
        self.assertRegex(output, "told: JobFailed")
        self.require_nothing_left()

    def test_torchrun_starts_the_ranks_of_all_hosts_again(self) -> None:
        """Only the node whose rank has died counts a restart. Both nodes meet in the next life."""
        self.restarts = 1
        for rank in ("0", "1"):
            lived = str(self.directory / f"lived.{rank}")
            program = ["--no-python", *rank_with_torch(), "die_once", lived, rank]
            started = self.start_torchrun((1, 1), *program)
            self.require_ranks(self.finish(*started), [1, 1])
            self.require_nothing_left()


class AtASchedulerTest(_TorchrunTest):
    """Tests jobs of a scheduler that runs before torchrun starts and after it ends."""

    restarts = 1

    def setUp(self) -> None:
        super().setUp()
        first = self.network.address(self.hosts[0])
        secret = self.directory / "secret"
        secret.write_text("s" * 64)
        secret.chmod(0o600)
        self.environment["TALWEG_SECRET_FILE"] = str(secret)
        self.daemons: list[subprocess.Popen[str]] = []
        scheduler = self._start_daemon("scheduler", f"--listen={first}:0", "--in_memory")
        self.environment["TALWEG_SCHEDULER"] = scheduler["listen"]
        self._start_daemon("aggregator", f"--listen={first}:0")

    def _start_daemon(self, *line: str) -> dict[str, str]:
        """Starts a daemon on the first host. Returns its addresses by their names."""
        on_first = self.on(self.hosts[0])
        daemon = self.start([*on_first, job.TOOL, *line, "--insecure", "--ready_fd=1"])
        self.daemons.append(daemon)
        assert daemon.stdout is not None
        ready = next(line for line in daemon.stdout if line.startswith("{"))
        return dict(json.loads(ready)["addresses"])

    def _require_nothing_else_left(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(job.TIMEOUT_S)
        self.require_nothing_left()

    def test_torchrun_starts_the_ranks_of_all_hosts_again(self) -> None:
        """Each host counts lives by itself, and each life is another job of the scheduler."""
        for rank in ("0", "1"):
            lived = str(self.directory / f"lived.{rank}")
            program = ["--no-python", *rank_with_torch(), "die_once", lived, rank]
            self.require_ranks(self.finish(*self.start_torchrun((1, 1), *program)), [1, 1])
        self._require_nothing_else_left()

    def test_a_job_with_a_name(self) -> None:
        """The job has the same name in each life."""
        program = [
            "--no-python",
            *rank_with_torch(),
            "die_once",
            str(self.directory / "lived"),
            "1",
        ]
        started = self.start_torchrun((1, 1), *program, TALWEG_JOB="named")
        self.require_ranks(self.finish(*started), [1, 1])
        self._require_nothing_else_left()


class OutlivedAgentTest(OutlivingTest, _TorchrunTest):
    def _live(self, **variables: str) -> list[subprocess.Popen[str]]:
        started = self.start_torchrun(
            (1, 1), "--no-python", *in_fork(self.program[2:]), **variables
        )
        self.go_on(2)
        return started

    def test_the_others_go_on_and_it_comes_back(self) -> None:
        started = self._live(TALWEG_LOSS_POLICY="continue")
        for place in (0, 1):
            self.kill_agent(self._agent_of_node(place))
            self.go_on(2)
        self.stop()
        output = self.finish(*started)
        self.assertEqual(output.count("agent is started again, 1 of 3 times"), 2, output)
        self.require_equal_ends(2)
        steps: set[int] = set()
        for lines in self.said().values():
            own = [int(line.split()[1]) for line in lines if line.startswith("step ")]
            self.assertEqual(own, sorted(set(own)))
            steps |= set(own)
            # Each rank has lost its agent once.
            self.assertEqual(sum(line.startswith("begins") for line in lines), 2)
        self.assertEqual(steps, set(range(1, max(steps) + 1)))
        self.require_nothing_left()

    def test_a_job_that_does_not_go_on(self) -> None:
        started = self._live()
        os.kill(self._agent_of_node(1), signal.SIGKILL)
        output = self.finish(*started, status=None)
        self.assertNotIn("started again", output)
        ends = sorted(lines[-1] for lines in self.said().values())
        self.assertRegex(ends[0], "error AgentLost: .* Set TALWEG_LOSS_POLICY=continue at all")
        self.assertRegex(ends[1], "error JobFailed: .*node 1")
        self.require_nothing_left()

    def _agent_of_node(self, node: int) -> int:
        [found] = [
            pid
            for pid, line in self.processes().items()
            if "talweg-agent" in line and f"--node_rank={node} " in line
        ]
        return found


if __name__ == "__main__":
    unittest.main()
