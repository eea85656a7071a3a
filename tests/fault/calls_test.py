# SPDX-License-Identifier: Apache-2.0
"""Tests floods of calls to daemons: which callers are refused, and which go on."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import unittest
from pathlib import Path

import other_user
from cluster import DEADLINE_S, RUNFILES, TOOL, Cluster, Job, Rank

# Members renew their leases five times in this time. If a flood keeps them from that, a lease ends
# within twice this time.
_LEASE_MS = 1000
_LIMITS = ["--peer_calls_per_second_max=50", "--peer_calls_open_max=20"]


def _caller(cluster: Cluster, address: str, what: str, *tls_dir: str) -> Rank:
    return Rank(cluster.process([str(RUNFILES / "tests/fault/caller"), address, what, *tls_dir]))


# A program that opens connections, and counts those that are still open at the end.
_HOLDER = """
import select, socket, sys
host, port = sys.argv[1].rsplit(":", 1)
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection((host, int(port))))
    held[-1].sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(3) + b"\\x04" + bytes(5))
def stays(connection):
    connection.settimeout(60)
    try:
        return bool(connection.recv(1))
    except OSError:
        return False
print("held", sum(map(stays, held)), flush=True)
sys.stdin.read()
"""


class _Relay:
    """Forwards connections, as if they came from another address of this machine."""

    def __init__(self, target: str, source: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._source = source
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            source = (self._source, 0)
            server = socket.create_connection(self._target, DEADLINE_S, source_address=source)
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        one.settimeout(None)
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


class CallsTest(unittest.TestCase):
    def test_members_go_on_while_their_own_address_floods_the_scheduler(self) -> None:
        with Cluster() as cluster:
            options = [f"--lease_ms={_LEASE_MS}", *_LIMITS]
            job = Job(cluster, scheduler_options=options)
            address = job.scheduler.addresses["listen"]
            # The callers make a member's call without the secret, and a reader's call.
            callers = [_caller(cluster, address, what) for what in ("renew", "look")]
            for caller in callers:
                text = caller.wait_for("refused: ")
                self.assertRegex(
                    text, "user [0-9]+ has (made )?the peer_calls_(per_second|open)_max=.* calls"
                )
                self.assertIn("raise that option", text)
            # The flood lasts for several leases.
            for caller in callers:
                for _ in range(20):
                    caller.wait_for("calls ")
            for rank in job.all_ranks():
                rank.goes_on()
            for daemon in (job.scheduler, *job.aggregators, *job.agents):
                self.assertIsNone(daemon.process.poll())
            self.assertNotIn("lease", cluster.log(job.scheduler))

    def test_a_job_comes_in_after_a_flood_of_its_address(self) -> None:
        """A process that is refused in a flood of its address asks again."""
        limit = "--peer_calls_per_second_max=1"
        with Cluster() as cluster:
            scheduler = cluster.scheduler(["--in_memory", limit])
            address = scheduler.addresses["listen"]
            caller = _caller(cluster, address, "look")
            caller.wait_for("refused: ")
            # A call may come just when there is room for one.
            for number in range(50):
                options = [f"--scheduler={address}", "--min_members=1", f"--job=job{number}"]
                agent = cluster.agent(0, options, name=f"agent{number}")
                cluster.wait_for_log(agent, "joined job|not let in yet")
                if "not let in yet" in cluster.log(agent):
                    break
            self.assertIn("peer_calls_per_second_max=1 calls", cluster.log(agent))
            rank = cluster.rank(agent, "steady.py")
            caller.process.kill()
            rank.wait_for("step 3")

    def _scheduler_with_certificates(self, cluster: Cluster, *roles: str) -> tuple[Path, str]:
        """Starts a scheduler that takes one call of a peer at once, and then one a second.

        So a flood leaves no room. Returns the directory of certificates, and the port.
        """
        pki = cluster.directory / "pki"
        subprocess.run(
            [str(TOOL), "certs", "--days=2", str(pki), "scheduler", *roles],
            check=True,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        scheduler = cluster.start(
            "scheduler",
            "scheduler",
            [
                f"--listen={'[::]' if _has_ipv6() else '127.0.0.1'}:0",
                "--in_memory",
                "--secret_file=none",
                f"--tls_dir={pki}/scheduler",
                "--peer_calls_per_second_max=1",
            ],
        )
        return pki, scheduler.addresses["listen"].rpartition(":")[2]

    def _agent_comes_in_at_once(self, cluster: Cluster, port: str, tls_dir: str) -> None:
        agent = cluster.agent(
            0, [f"--scheduler=127.0.0.1:{port}", "--min_members=1", f"--tls_dir={tls_dir}"]
        )
        cluster.wait_for_log(agent, "joined job")
        self.assertNotIn("not let in yet", cluster.log(agent))

    def test_with_certificates_each_name_is_counted(self) -> None:
        with Cluster() as cluster:
            pki, port = self._scheduler_with_certificates(cluster, "node:default", "viewer")
            me = os.geteuid()
            # It is one client, whichever of this machine's addresses it calls.
            for address in [f"127.0.0.1:{port}"] + [f"[::1]:{port}"] * _has_ipv6():
                caller = _caller(cluster, address, "look", f"{pki}/viewer")
                caller.wait_for(
                    f"refused: viewer (user {me}) has made the peer_calls_per_second_max=1 calls"
                )
            # This is another client of the same address.
            self._agent_comes_in_at_once(cluster, port, f"{pki}/node-default")

    def test_a_flood_under_a_name_that_others_have_keeps_none_of_them_out(self) -> None:
        """Another user floods with an agent's own certificate, and the agent still gets in."""
        reason = other_user.why_not()
        if reason:
            self.skipTest(reason)
        for role in ("node:default", "node:*"):
            with self.subTest(role), Cluster() as cluster:
                pki, port = self._scheduler_with_certificates(cluster, role)
                tls_dir = f"{pki}/{role.replace(':', '-').replace('*', '_')}"
                line = [str(RUNFILES / "tests/fault/caller"), f"127.0.0.1:{port}", "renew", tls_dir]
                flooder = Rank(cluster.process([*other_user.BECOME, *line]))
                text = flooder.wait_for("refused: node of ")
                self.assertIn(f"(user {other_user.UID}) has made", text)
                self._agent_comes_in_at_once(cluster, port, tls_dir)
                flooder.wait_for("calls ")  # The flood goes on.

    def test_a_user_of_this_machine_is_one_peer(self) -> None:
        with Cluster() as cluster:
            options = ["--in_memory", "--peer_calls_per_second_max=1"]
            scheduler = cluster.scheduler(options)
            relay = _Relay(scheduler.addresses["listen"], "127.0.0.9")
            caller = _caller(cluster, relay.address, "look")
            caller.wait_for(f"refused: user {os.geteuid()} has made")

    def test_connections_of_another_user_leave_room_for_others(self) -> None:
        """Another user holds as many connections as he gets, and begins each as a gRPC client."""
        reason = other_user.why_not()
        if reason:
            self.skipTest(reason)
        few = ("prlimit", "--nofile=256:256", "--")
        with Cluster() as cluster:
            scheduler = cluster.start(
                "scheduler",
                "scheduler",
                ["--listen=127.0.0.1:0", "--in_memory", "--secret_file=none"],
                few,
            )
            address = scheduler.addresses["listen"]
            line = [*other_user.BECOME, "/usr/bin/python3", "-c", _HOLDER, address, "600"]
            holder = Rank(cluster.process(line))
            # This is a quarter of the scheduler's connections.
            self.assertEqual(holder.wait_for("held "), "held 64")
            # The scheduler serves an agent that comes now.
            agent = cluster.agent(0, [f"--scheduler={address}", "--min_members=1"])
            cluster.wait_for_log(agent, "joined job")
            holder.process.kill()

    def test_every_port_counts(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, aggregator_options=_LIMITS, agent_options=_LIMITS)
            ports = {"agent": job.agents[0], "aggregator": job.aggregators[0]}
            for what, daemon in ports.items():
                for call in (what, "health"):
                    with self.subTest(f"{call} of an {what}"):
                        caller = _caller(cluster, daemon.addresses["admin"], call)
                        caller.wait_for(f"refused: user {os.geteuid()} has ")
                        caller.process.kill()
            for rank in job.all_ranks():
                rank.goes_on()


if __name__ == "__main__":
    unittest.main()
