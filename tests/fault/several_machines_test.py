# SPDX-License-Identifier: Apache-2.0
"""Tests `talweg run --scheduler` on each of several machines, with daemons that already run."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import unittest

from cluster import DEADLINE_S, PROGRAMS, TOOL, Cluster, Job


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def _free_ports(count: int) -> int:
    """Returns the first of `count` ports, most of which are free. Daemons skip the others."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return min(port, 65536 - count)


class SeveralMachinesTest(unittest.TestCase):
    def test_two_nodes_of_one_job(self) -> None:
        with Cluster() as cluster:
            address = cluster.scheduler(["--in_memory"]).addresses["listen"]
            cluster.aggregator(address, "a0")
            tool = str(TOOL)
            program = [sys.executable, "-P", str(PROGRAMS / "ten_steps.py")]
            runs = [
                subprocess.Popen(
                    [
                        tool,
                        "run",
                        f"--scheduler={address}",
                        "--nodes=2",
                        f"--node-rank={node}",
                        "--ranks-per-node=2,1",
                        "--",
                        *program,
                    ],
                    env=dict(os.environ),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for node in range(2)
            ]
            outputs = [run.communicate(timeout=DEADLINE_S)[0] for run in runs]
            for run, output in zip(runs, outputs):
                self.assertEqual(run.returncode, 0, output)
            self.assertIn("[0] rank 0 of 3, local 0 of 2: done", outputs[0])
            self.assertIn("[1] rank 1 of 3, local 1 of 2: done", outputs[0])
            self.assertIn("[2] rank 2 of 3, local 0 of 1: done", outputs[1])

    def test_addresses_by_name(self) -> None:
        with Cluster() as cluster:
            by_name = ["--listen=localhost:0", "--advertise=localhost"]
            job = Job(
                cluster,
                scheduler_options=by_name,
                aggregator_options=[*by_name, "--admin_listen=localhost:0"],
                agent_options=["--nolocal_transport", "--admin_listen=localhost:0"],
            )
            self.assertIn("//localhost:", job.aggregators[0].addresses["data"])
            for rank in job.all_ranks():
                rank.wait_for("step 10 ")

    def test_over_ipv6(self) -> None:
        if not _has_ipv6():
            self.skipTest("this machine has no IPv6 loopback")
        with Cluster() as cluster:
            job = Job(
                cluster,
                aggregators=2,
                scheduler_options=["--listen=[::1]:0"],
                aggregator_options=["--listen=[::1]:0", "--admin_listen=[::1]:0"],
                agent_options=["--nolocal_transport", "--admin_listen=[::1]:0"],
            )
            for daemon in (job.scheduler, *job.aggregators, *job.agents):
                for name, address in daemon.addresses.items():
                    if name != "socket":
                        self.assertIn("[::1]:", address)
            for rank in job.all_ranks():
                rank.wait_for("step 10 ")
            address = job.scheduler.addresses["listen"]
            status = subprocess.run(
                [str(TOOL), "status", f"--scheduler={address}"],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            self.assertEqual(status.returncode, 0, status.stderr)
            self.assertNotIn("did not answer", status.stdout)
            self.assertIn("fi:tcp://[::1]:", status.stdout)

    def test_ports_out_of_ranges(self) -> None:
        """All processes listen only on ports of the range, as a firewall may demand."""
        with Cluster() as cluster:
            first = _free_ports(50)
            ports = f"{first}-{first + 49}"
            job = Job(
                cluster,
                aggregators=2,
                scheduler_options=[f"--listen=127.0.0.1:{ports}"],
                aggregator_options=[
                    f"--listen=127.0.0.1:{ports}",
                    f"--admin_listen=127.0.0.1:{ports}",
                ],
                agent_options=["--nolocal_transport", f"--admin_listen=127.0.0.1:{ports}"],
            )
            taken = set()
            for daemon in (job.scheduler, *job.aggregators, *job.agents):
                for name, address in daemon.addresses.items():
                    if name == "socket":
                        continue
                    port = int(address.split(",")[0].rpartition(":")[2].partition("/")[0])
                    self.assertIn(port, range(first, first + 50))
                    taken.add(port)
            self.assertEqual(len(taken), 7)


if __name__ == "__main__":
    unittest.main()
