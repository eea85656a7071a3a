# SPDX-License-Identifier: Apache-2.0
"""Tests a job on hosts with their own networks, with real TCP, and a cable that is pulled."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster import DEADLINE_S, PROGRAMS, TOOL, Cluster, Daemon, Rank
from netns import Network, NotPermitted

_LEASE_MS = 4000
_STEP_BYTES = 300_000 * 4  # The least number of bytes that a rank of steady.py pushes in a step.
_ON_SERVER = (("x", "server"), ("y", "server"))


def _peers(pid: int) -> list[str]:
    """Returns the peers of the established TCP connections (IPv4) of that process's host."""
    peers = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state = line.split()[:4]
        if state == "01":
            peers.append(socket.inet_ntoa(bytes.fromhex(remote.partition(":")[0])[::-1]))
    return peers


class SeparateHosts:
    """Machines "a" and "b", or others, and a "server" with a scheduler.

    `aggregators` has the machine of each aggregator, by name.
    """

    def __init__(
        self, machines: str = "ab", aggregators: Sequence[tuple[str, str]] = _ON_SERVER
    ) -> None:
        self.machines = machines
        self._aggregators = aggregators

    def __enter__(self) -> SeparateHosts:
        with contextlib.ExitStack() as stack:
            self.network = stack.enter_context(Network(["server", *self.machines]))
            self.cluster = stack.enter_context(Cluster())
            options = [f"--listen={self.network.address('server')}:0", "--in_memory"]
            options += [f"--lease_ms={_LEASE_MS}", "--insecure"]
            scheduler = self._start("scheduler", "scheduler", options, "server")
            self.scheduler = scheduler.addresses["listen"]
            for name, host in self._aggregators:
                options = [f"--scheduler={self.scheduler}", f"--name={name}"]
                options.append(f"--listen={self.network.address(host)}:0")
                self._start("aggregator", f"aggregator.{name}", options, host)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _start(self, service: str, name: str, options: list[str], host: str) -> Daemon:
        return self.cluster.start(service, name, options, self.network.enter(host))

    def wait_for_aggregators(self) -> None:
        """Returns when the scheduler takes all of them into new views."""
        line = [str(TOOL), "status", f"--scheduler={self.scheduler}", "--json"]
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            output = subprocess.check_output(
                [*self.network.enter("server"), *line], timeout=DEADLINE_S
            )
            pool = json.loads(output)["pool"]
            if sum(each["attached"] for each in pool) == len(self._aggregators):
                return
            assert time.monotonic() < deadline_s, pool
            time.sleep(0.01)

    def agent(self, node: int, host: str, count: int, job: str, more: Sequence[str] = ()) -> Daemon:
        """Starts a node's agent."""
        options = [
            "--insecure",  # The agent needs it for an admin port that is bound to an interface.
            f"--scheduler={self.scheduler}",
            f"--job={job}",
            f"--node_rank={node}",
            f"--rank_count={count}",
            f"--min_members={len(self.machines)}",
            f"--max_members={len(self.machines)}",
            f"--name=machine-{host}",
            *more,
        ]
        return self.cluster.agent(node, options, self.network.enter(host))

    def ranks(
        self, node: int, host: str, count: int, job: str, more: Sequence[str] = ()
    ) -> list[Rank]:
        """Starts a node's agent and ranks."""
        agent, inside = self.agent(node, host, count, job, more), self.network.enter(host)
        return [self.cluster.rank(agent, "steady.py", (), inside) for _ in range(count)]

    def counters(self, agent: Daemon, host: str) -> dict[str, int]:
        """Returns the counters of the agent of `host`."""
        line = [str(TOOL), "status", f"--agent={agent.addresses['admin']}", "--json"]
        output = subprocess.check_output([*self.network.enter(host), *line], timeout=DEADLINE_S)
        return {name: int(value) for name, value in json.loads(output)["counters"].items()}


class SeparateHostsTest(unittest.TestCase):
    def test_the_tool_once_a_host(self) -> None:
        program = [sys.executable, "-P", str(PROGRAMS / "ten_steps.py")]
        with SeparateHosts() as hosts:
            shape = [f"--scheduler={hosts.scheduler}", "--nodes=2", "--ranks-per-node=2,1"]
            runs = []
            for node, host in enumerate(("a", "b")):
                line = [str(TOOL), "run", *shape, f"--node-rank={node}", "--", *program]
                runs.append(
                    subprocess.Popen(
                        [*hosts.network.enter(host), *line],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )
                self.addCleanup(runs[-1].wait)
                self.addCleanup(runs[-1].terminate)
            for run in runs:
                output = run.communicate(timeout=DEADLINE_S)[0]
                self.assertEqual(run.returncode, 0, output)
                self.assertIn("of 3, local 0 of", output)

    def test_a_pulled_cable_is_named_at_all_others(self) -> None:
        with SeparateHosts() as hosts:
            first, second = hosts.ranks(0, "a", 2, "training")
            (lonely,) = hosts.ranks(1, "b", 1, "training")
            # Each rank checks its sums. All its data went over the wire by TCP.
            for rank in (first, second, lonely):
                rank.wait_for("step 5 ")
            received, sent = hosts.network.bytes_moved("b")
            self.assertGreater(received, 4 * _STEP_BYTES)
            self.assertGreater(sent, 4 * _STEP_BYTES)

            hosts.network.unplug("b")
            for rank in (first, second):
                line = rank.wait_for("error ")
                self.assertRegex(line, "error JobFailed: .*node 1.*machine-b")
                self.assertEqual(rank.process.wait(DEADLINE_S), 3)
            # With the cable back the host that was cut off learns what was decided without it. The
            # aggregators, which were not affected, serve the next job.
            hosts.network.plug("b")
            lonely.wait_for("error JobFailed")
            self.assertEqual(lonely.process.wait(DEADLINE_S), 3)
            for rank in hosts.ranks(0, "a", 1, "next") + hosts.ranks(1, "b", 1, "next"):
                rank.wait_for("step 3 ")

    def test_the_host_that_is_cut_off_does_not_wait_for_its_cable(self) -> None:
        with SeparateHosts() as hosts:
            limits = ["--silence_ms=6s", "--unreachable_ms=5s"]
            (first,) = hosts.ranks(0, "a", 1, "training", limits)
            (second,) = hosts.ranks(1, "b", 1, "training", limits)
            for rank in (first, second):
                rank.wait_for("step 5 ")
            hosts.network.unplug("b")
            line = second.wait_for("error ")
            self.assertRegex(line, "error JobFailed: .*node 1.* has not reached aggregator '[xy]'")
            self.assertIn(f"the scheduler at {hosts.scheduler} does not answer", line)
            self.assertEqual(second.process.wait(DEADLINE_S), 3)
            self.assertRegex(first.wait_for("error "), "error JobFailed: .*node 1")

    def test_data_connections_leave_from_the_interface_that_was_given(self) -> None:
        with SeparateHosts() as hosts:
            network = hosts.network
            second = "10.78.0.1"
            network.shell(
                "a", f"ip link add second type bridge; ip address add {second}/32 dev second"
            )
            network.shell("a", "ip link set second up")
            network.shell("server", f"ip route add {second}/32 via {network.address('a')}")
            network.shell("b", f"ip route add {second}/32 via {network.address('a')}")
            (first,) = hosts.ranks(0, "a", 1, "training", ["--interface=second"])
            (other,) = hosts.ranks(1, "b", 1, "training")
            for rank in (first, other):
                rank.wait_for("step 5 ")
            peers = _peers(network.pid("server"))
            self.assertEqual(peers.count(second), 2, peers)  # Each aggregator has one connection.

    def test_a_long_way_is_kept_full(self) -> None:
        round_trip_s, link_bytes_per_s = 0.04, 50_000_000
        with SeparateHosts() as hosts:
            for host in ("a", "b"):
                hosts.network.shape(host, link_bytes_per_s * 8)
            hosts.network.delay("server", round_trip_s * 1000 / 2)
            agents, ranks = [], []
            for node, host in enumerate(("a", "b")):
                agents.append(hosts.agent(node, host, 1, "training"))
                inside = hosts.network.enter(host)
                ranks.append(hosts.cluster.rank(agents[-1], "steady.py", ["4000000"], inside))
            for rank in ranks:
                rank.wait_for("step 2 ")
            # A window that did not grow with the round trip would have at most 1.1 MB.
            wanted_bytes = int(link_bytes_per_s * 0.9 * (round_trip_s + 0.01))
            deadline_s = time.monotonic() + DEADLINE_S
            while time.monotonic() < deadline_s:
                counters = hosts.counters(agents[0], "a")
                self.assertGreaterEqual(counters["round_trip_us"], round_trip_s * 1e6)
                if counters["send_window_bytes"] > wanted_bytes:
                    break
            self.assertGreater(counters["send_window_bytes"], wanted_bytes, counters)
            for rank in ranks:
                rank.wait_for("step 4 ")  # Each rank has checked its sums.

    def test_parts_cross_the_links_that_they_must_and_no_other(self) -> None:
        # Each rank gives 6 MiB. The part of 2 MiB for its own host stays there.
        rounds, must_bytes = 4, 4 << 20
        aggregators = [(f"agg-{host}", host) for host in "abc"]
        with SeparateHosts("abc", aggregators) as hosts:
            hosts.wait_for_aggregators()
            ranks = []
            for node, host in enumerate("abc"):
                agent, inside = hosts.agent(node, host, 1, "training"), hosts.network.enter(host)
                ranks.append(hosts.cluster.rank(agent, "exchange.py", (), inside))

            def call(name: str, times: int) -> None:
                for rank in ranks:
                    rank.tell(f"{name} {6 << 20} {times}")
                for rank in ranks:
                    rank.wait_for("done")

            for name in ("reduce_scatter", "all_to_all", "all_gather"):
                call(name, 1)  # In this call the ranks agree on the tensors.
                before = {host: hosts.network.bytes_moved(host) for host in "abc"}
                call(name, rounds)
                for host, counts in before.items():
                    after = hosts.network.bytes_moved(host)
                    for way, moved in zip(("received", "sent"), map(int.__sub__, after, counts)):
                        with self.subTest(name, host=host, way=way):
                            self.assertGreaterEqual(moved, rounds * must_bytes)
                            self.assertLessEqual(moved, 1.1 * rounds * must_bytes)

    def test_an_interface_that_is_not_there(self) -> None:
        with SeparateHosts() as hosts, self.assertRaisesRegex(AssertionError, "'eth7'"):
            hosts.ranks(0, "a", 1, "training", ["--interface=eth7"])


if __name__ == "__main__":
    try:
        with Network(["probe"]):
            pass
    except NotPermitted as refusal:
        print(f"SKIPPED: {refusal}")
        sys.exit(0)
    unittest.main()
