# SPDX-License-Identifier: Apache-2.0
"""Tests that wrong input gets an error at once, with its remedy, and disturbs nobody else."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, PROGRAMS, RUNFILES, TOOL, Cluster, Daemon, Job, Rank


def _start_alone(service: str, *options: str) -> subprocess.CompletedProcess[str]:
    binary = RUNFILES / "services" / service / f"talweg-{service}"
    return subprocess.run(
        [str(binary), *options], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def _start_agent_alone(scheduler: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as directory:
        return _start_alone(
            "agent",
            f"--scheduler={scheduler}",
            f"--socket_path={directory}/agent.sock",
            "--join_timeout_ms=1000",
        )


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=DEADLINE_S)


class BadInputTest(unittest.TestCase):
    def test_no_agent(self) -> None:
        program = str(PROGRAMS / "steady.py")
        environment = dict(os.environ, TALWEG_AGENT_SOCKET="/nonexistent/agent.sock")
        done = subprocess.run(
            [sys.executable, "-P", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nonexistent/agent.sock", done.stderr)
        self.assertIn("talweg run", done.stderr)

    def test_scheduler_that_does_not_resolve(self) -> None:
        done = _start_agent_alone("no-such-host.invalid:7447")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no-such-host.invalid", done.stderr)

    def test_scheduler_that_is_not_there(self) -> None:
        with socket.socket() as taken:  # It does not listen, so connections are refused.
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            done = _start_agent_alone(address)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(address, done.stderr)

    def test_port_taken(self) -> None:
        with socket.socket() as taken, tempfile.TemporaryDirectory(dir="/tmp") as directory:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            nobody = ["--scheduler=127.0.0.1:1"]
            for service, *options in (
                ("scheduler", f"--listen={address}", "--in_memory"),
                ("aggregator", f"--listen={address}", *nobody),
                ("aggregator", f"--admin_listen={address}", *nobody),
                (
                    "agent",
                    f"--admin_listen={address}",
                    "--standalone",
                    f"--socket_path={directory}/s",
                ),
            ):
                with self.subTest(service, option=options[0]):
                    done = _start_alone(service, *options)
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(address.rpartition(":")[2], done.stderr)

    def test_a_trace_that_cannot_be_written(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            for path, why in (
                (f"{directory}/none/trace", "No such file or directory"),
                (directory, "is a directory"),
            ):
                done = _start_alone(
                    "agent",
                    "--standalone",
                    f"--socket_path={directory}/s",
                    f"--trace_path={path}",
                )
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(f"--trace_path: '{path}'", done.stderr)
                self.assertIn(why, done.stderr)
            self.assertEqual(os.listdir(directory), [])

    def test_options(self) -> None:
        for option, wanted in (
            ("--lease_ms=never", "never"),
            ("--leese_ms=100", "lease_ms"),
            ("--listen=localhost:99999", "99999"),
        ):
            done = _start_alone("scheduler", option)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(wanted, done.stderr)
            tool = str(TOOL)
            same = subprocess.run(
                [tool, "scheduler", option],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            self.assertEqual((same.returncode, same.stderr), (done.returncode, done.stderr))

    def test_more_ranks_than_declared_and_one_taken_twice(self) -> None:
        with Cluster() as cluster:
            agent = cluster.agent(0, ["--standalone", "--rank_count=1"])
            first = cluster.rank(agent, "steady.py")
            first.wait_for("step 3")
            second = cluster.rank(agent, "steady.py")
            line = second.wait_for("Error")
            while "talweg.errors." not in line:
                line = second.wait_for("talweg.errors.")
            self.assertIn("talweg.errors.RankTaken", line)
            self.assertIn("1", line)
            self.assertNotEqual(second.process.wait(DEADLINE_S), 0)
            first.wait_for("step ")  # The other rank goes on.

    def test_an_aggregator_whose_name_does_not_resolve(self) -> None:
        with Cluster() as cluster:
            for rank in self._two_ranks(
                cluster,
                ["--advertise=no-such-host.invalid"],
                ["--nolocal_transport", "--unreachable_ms=1000"],
            ):
                line = rank.wait_for("JobFailed")
                self.assertIn("'no-such-host.invalid' does not resolve", line)
                self.assertNotEqual(rank.process.wait(DEADLINE_S), 0)

    def _two_ranks(
        self,
        cluster: Cluster,
        aggregator_options: Sequence[str] = (),
        agent_options: Sequence[str] = (),
        program: str = "steady.py",
    ) -> list[Rank]:
        """Starts a rank on each of two nodes, with one aggregator."""
        scheduler = cluster.scheduler(["--in_memory"]).addresses["listen"]
        cluster.aggregator(scheduler, "a0", aggregator_options)
        shape = [f"--scheduler={scheduler}", "--min_members=2", "--max_members=2"]
        agents = [
            cluster.agent(node, [*shape, *agent_options, f"--node_rank={node}"])
            for node in range(2)
        ]
        return [cluster.rank(agent, program) for agent in agents]

    def test_more_tensors_than_an_aggregator_may_hold(self) -> None:
        with Cluster() as cluster:
            for rank in self._two_ranks(cluster, ["--memory_bytes_max=1MiB"]):
                line = rank.wait_for("error ")
                self.assertIn("error OutOfMemory: ", line)
                self.assertIn("'large'", line)
                self.assertIn("1 MiB", line)
                self.assertIn("memory_bytes_max", line)
                self.assertEqual(rank.process.wait(DEADLINE_S), 3)

    def test_more_tensors_than_an_agent_may_hold(self) -> None:
        with Cluster() as cluster:
            agent = cluster.agent(0, ["--standalone", "--arena_bytes_max=1MiB"])
            rank = cluster.rank(agent, "steady.py")
            line = rank.wait_for("error ")
            self.assertIn("error OutOfMemory: ", line)
            self.assertIn("arena_bytes_max", line)
            self.assertEqual(rank.process.wait(DEADLINE_S), 3)

    def test_ranks_that_disagree_on_a_tensor(self) -> None:
        with Cluster() as cluster:
            agent = cluster.agent(0, ["--standalone", "--rank_count=2"])
            self._check_disagreement([cluster.rank(agent, "disagree.py") for _ in range(2)])

    def test_nodes_that_disagree_on_a_tensor(self) -> None:
        with Cluster() as cluster:
            self._check_disagreement(self._two_ranks(cluster, program="disagree.py"))

    def _check_disagreement(self, ranks: Sequence[Rank]) -> None:
        for rank in ranks:
            line = rank.wait_for("error Mismatch")
            self.assertIn("disputed", line)
            self.assertRegex(line, r"rank 0 .*f32\[100\]")
            self.assertRegex(line, r"rank 1 .*f32\[200\]")
        for rank in ranks:
            self.assertEqual(rank.process.wait(DEADLINE_S), 0)

    def test_garbage_on_every_port_and_socket(self) -> None:
        rng = random.Random(1)
        payloads = [
            b"",
            rng.randbytes(1),
            rng.randbytes(4096),
            b"TLWG" + struct.pack("<IQQII", 1, 2, 3, 0x7FFFFFFF, 0xFFFFFFFF),
            struct.pack("<I", 0x40000000) + rng.randbytes(100),
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(300),
        ]
        with Cluster() as cluster:
            job = Job(cluster, nodes=(1, 1))
            daemons = [job.scheduler, *job.aggregators, *job.agents]
            before = {daemon.name: self._descriptors(daemon) for daemon in daemons}
            for daemon in daemons:
                for name, address in daemon.addresses.items():
                    for payload in payloads:
                        self._throw(name, address, payload)
            # A daemon keeps nothing of clients that have hung up.
            for daemon in daemons:
                end = time.monotonic() + DEADLINE_S
                while self._descriptors(daemon) > before[daemon.name]:
                    self.assertLess(time.monotonic(), end, daemon.name)
                    os.sched_yield()
            for rank in job.all_ranks():
                for _ in range(5):
                    rank.wait_for("step ")
            for daemon in daemons:
                self.assertIsNone(daemon.process.poll(), f"{daemon.name} has ended")

    def _descriptors(self, daemon: Daemon) -> int:
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    def _throw(self, name: str, address: str, payload: bytes) -> None:
        if name == "socket":
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(DEADLINE_S)
                client.connect(address)
                client.sendall(payload)
            return
        for part in address.split(","):
            if part == "local":
                continue
            # The text is like fi:tcp://host:port.
            with _connect(part.partition("//")[2] or part) as client:
                client.sendall(payload)


if __name__ == "__main__":
    unittest.main()
