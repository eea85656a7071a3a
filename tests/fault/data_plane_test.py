# SPDX-License-Identifier: Apache-2.0
"""Tests attacks on a job's data plane: off the path, on the path, and with a member's key."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import threading
import time
import unittest

from cluster import DEADLINE_S, RUNFILES, Cluster, Daemon, Job
from on_the_path import Change, OnThePath, place_of

_SECURE = ("keyed", "tls")
# libfabric's tcp first sends a header of its own and a token.
_CONNECT_BYTES = 32 + 53
# The most half-open connections of one address, and the most for an instant.
_STRANGERS_MAX, _BURST_MAX = 64, 128


def _is_closed(connection: socket.socket) -> bool:
    """Waits until the other side closes the connection, and returns True."""
    connection.settimeout(DEADLINE_S)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def _flip(data: bytes) -> bytes:
    return data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]


class _SlowStrangers:
    """Strangers that connect all at once. Each sends a byte of the greeting five times a second,
    until it is thrown out or has sent all of it.
    """

    _PACE_S = 0.2

    def __init__(self, place: tuple[str, int], greeting: bytes, count: int, pid: int) -> None:
        self._greeting = greeting
        self._descriptors = f"/proc/{pid}/fd"
        self._usual = len(os.listdir(self._descriptors))
        self._stops = threading.Event()
        self._open: dict[socket.socket, int] = {}
        self._said: list[int] = []
        # The most descriptors that the process had in addition to those before.
        self.descriptors_max = 0
        for _ in range(count):
            self._open[socket.create_connection(place, DEADLINE_S)] = 0
            self._look()
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stops.set()
        self._thread.join(DEADLINE_S)
        for connection in self._open:
            connection.close()

    def wait(self) -> list[int]:
        """Returns how many bytes each had sent when it was thrown out."""
        self._thread.join(DEADLINE_S)
        assert not self._open, f"{len(self._open)} are still there"
        return self._said

    def _look(self) -> None:
        now = len(os.listdir(self._descriptors)) - self._usual
        self.descriptors_max = max(self.descriptors_max, now)

    def _talk(self) -> None:
        while self._open and not self._stops.is_set():
            over, _, _ = select.select(list(self._open), [], [], 0)
            for connection in list(self._open):
                said = self._open[connection]
                try:
                    if connection in over and not connection.recv(4096):
                        raise ConnectionResetError
                    connection.send(self._greeting[said : said + 1])
                except OSError:
                    self._said.append(self._open.pop(connection))
                    connection.close()
                else:
                    self._open[connection] = said + 1
            self._look()
            self._stops.wait(self._PACE_S)


class DataPlaneTest(unittest.TestCase):
    def _job(self, cluster: Cluster, security: str) -> Job:
        """A job over Talweg's own TCP."""
        option = f"--data_security={security}"
        network = [option, "--data_transport=tcp", "--local_transport=false"]
        return Job(
            cluster,
            scheduler_options=[option],
            aggregator_options=network,
            agent_options=network,
        )

    def _check_unharmed(self, job: Job) -> None:
        for daemon in (*job.aggregators, *job.agents):
            self.assertIsNone(daemon.process.poll())
        for rank in job.all_ranks():
            rank.goes_on()  # A rank reports a step only if its sums are right.

    def _wait_for_last_words(self, cluster: Cluster, daemon: Daemon, text: str) -> None:
        """Returns when the daemon has logged the text, whether or not it then ends."""
        end = time.monotonic() + DEADLINE_S
        while text not in cluster.log(daemon):
            self.assertLess(time.monotonic(), end, cluster.log(daemon)[-2000:])
            time.sleep(0.01)

    def test_bytes_of_strangers_at_the_data_port(self) -> None:
        """A stranger off the path sends junk, other protocols, almost a Hello, or nothing."""
        for security in ("none", *_SECURE):
            with self.subTest(security), Cluster() as cluster:
                job = self._job(cluster, security)
                place = place_of(job.aggregators[0])
                setting = {"none": 1, "keyed": 2, "tls": 3}[security]
                hello = b"TLWK" + bytes([1, setting, 0, 0]) + bytes(96)
                junk = [
                    b"",
                    os.urandom(64),
                    os.urandom(200_000),
                    hello[:50],
                    hello,
                    hello + os.urandom(4096),
                    b"\x16\x03\x01\x02\x00\x01" + os.urandom(507),
                    b"\x01\x00\x00\x01" + bytes(44) + b"\x01" + bytes(63),
                    b"GET / HTTP/1.1\r\n\r\n",
                ]
                held = [socket.create_connection(place, DEADLINE_S) for _ in range(100)]
                for said in junk * 5:
                    with socket.create_connection(place, DEADLINE_S) as connection:
                        try:
                            connection.sendall(said)
                            connection.shutdown(socket.SHUT_WR)
                        except OSError:
                            pass  # The connection is closed already, as it should be.
                        self.assertTrue(_is_closed(connection))
                self._check_unharmed(job)
                for connection in held:
                    connection.close()
                log = cluster.log(job.aggregators[0])
                for daemon in (job.scheduler, *job.aggregators, *job.agents):
                    self.assertNotRegex(cluster.log(daemon), r"[0-9a-f]{64}")
                self.assertEqual(len(re.findall("connection .* node", log)), 2, log)

    def test_somebody_on_the_path(self) -> None:
        """An attacker on the path changes, drops, repeats or adds bytes. One connection breaks."""
        attacks: dict[str, Change] = {
            "flips a bit": _flip,
            "leaves bytes out": lambda data: data[:500] + data[600:],
            "repeats": lambda data: data + data,
            "puts bytes in": lambda data: data + bytes(64),
        }
        for security in _SECURE:
            with Cluster() as cluster:
                path = OnThePath()
                self.addCleanup(path.close)
                option = f"--data_security={security}"
                scheduler = cluster.scheduler(["--in_memory", option])
                address = scheduler.addresses["listen"]
                aggregator = cluster.aggregator(
                    address, "a0", [option, "--local_transport=false", "--advertise=127.0.0.2"]
                )
                path.open(place_of(aggregator)[1])
                ranks = []
                for node in range(2):
                    agent = cluster.agent(
                        node,
                        [
                            f"--scheduler={address}",
                            f"--node_rank={node}",
                            "--min_members=2",
                            "--max_members=2",
                            option,
                            "--local_transport=false",
                        ],
                    )
                    ranks.append(cluster.rank(agent, "steady.py"))
                for rank in ranks:
                    rank.goes_on()
                for name, attack in attacks.items():
                    for to_aggregator in (True, False):
                        with self.subTest(security=security, attack=name, up=to_aggregator):
                            before = path.connections
                            path.touch(attack, to_aggregator)
                            for rank in ranks:
                                rank.goes_on()
                            self.assertTrue(path.touched())
                            # The changed connection is over, and another one has replaced it.
                            self.assertGreater(path.connections, before)
                self.assertIn("on their way", cluster.log(aggregator))
                # A copy of the bytes with which a member connected lets nobody in.
                place = ("127.0.0.1", place_of(aggregator)[1])
                for said in path.first_bytes:
                    with socket.create_connection(place, DEADLINE_S) as connection:
                        try:
                            connection.sendall(said)
                        except OSError:
                            pass
                        self.assertTrue(_is_closed(connection))
                for rank in ranks:
                    rank.goes_on()

    def test_a_members_key_is_no_other_members(self) -> None:
        """A member uses its own key, and claims in its Hello to be another member."""
        ways = [("tcp", security) for security in ("none", *_SECURE)]
        for transport, security in [*ways, ("libfabric", "none")]:
            with self.subTest(security, transport=transport), Cluster() as cluster:
                network = [f"--data_security={security}", f"--data_transport={transport}"]
                network.append("--local_transport=false")
                job = Job(cluster, aggregator_options=network, agent_options=network)
                done = subprocess.run(
                    [
                        str(RUNFILES / "tests/attackers/impostor"),
                        job.scheduler.addresses["listen"],
                        security,
                        transport,
                    ],
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE_S,
                    check=False,
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("its own name: answered", done.stdout)
                self.assertIn("another member's name: closed", done.stdout)
                self.assertIn("another member's address: closed", done.stdout)
                if transport == "libfabric":
                    self.assertRegex(
                        done.stdout,
                        "its own name after it has left: closed: .* it refused: job [0-9]+ was over",
                    )
                cluster.wait_for_log(job.aggregators[0], "and its key is of node")
                self._check_unharmed(job)

    def test_a_member_that_has_departed_does_not_come_back_in_any_epoch(self) -> None:
        """A member that is out of its job still has its seeds, which make keys of all epochs."""
        for carrier in ("libfabric", "tcp", "local"):
            for way in ("left", "lost", "over"):
                with self.subTest(way, carrier=carrier), Cluster() as cluster:
                    network = [] if carrier == "local" else [f"--data_transport={carrier}"]
                    job = Job(cluster, aggregator_options=network, agent_options=network)
                    done = subprocess.run(
                        [
                            str(RUNFILES / "tests/attackers/impostor"),
                            job.scheduler.addresses["listen"],
                            "none",
                            carrier,
                            way,
                        ],
                        capture_output=True,
                        text=True,
                        timeout=DEADLINE_S,
                        check=False,
                    )
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertIn("before: answered", done.stdout)
                    ends = re.findall(r"epoch \d+: (.*)", done.stdout)
                    self.assertEqual(len(ends), 4, done.stdout)
                    # Over Talweg's own TCP, the aggregator tells the member at its Hello.
                    refused = "refused: .*" if carrier == "tcp" else "closed: .* it refused: .*"
                    why = "was over" if way == "over" else "(join again|cannot be right)"
                    for end in ends:
                        self.assertRegex(end, f"{refused}{why}", done.stdout)
                    self._check_unharmed(job)

    def test_what_members_said_to_connect_over_libfabric_is_good_once(self) -> None:
        """An attacker repeats recorded bytes with noise after them, and no message is parsed."""
        with Cluster() as cluster:
            path = OnThePath()
            self.addCleanup(path.close)
            address = cluster.scheduler(["--in_memory"]).addresses["listen"]
            options = ["--local_transport=false", "--advertise=127.0.0.2"]
            aggregator = cluster.aggregator(address, "a0", options)
            path.open(place_of(aggregator)[1])
            ranks = []
            for node in range(2):
                options = [f"--scheduler={address}", f"--node_rank={node}", "--min_members=2"]
                options += ["--max_members=2", "--local_transport=false"]
                ranks.append(cluster.rank(cluster.agent(node, options), "steady.py"))
            for rank in ranks:
                rank.goes_on()
            self.assertEqual(len(path.first_bytes), 2)
            place = ("127.0.0.1", place_of(aggregator)[1])
            for said in path.first_bytes:
                connect = said[:_CONNECT_BYTES]
                self.assertEqual(connect[32:36], b"TLWF")
                # The noise is a message of an operation that does not exist.
                noise = b"\x01" * 64
                for after in (b"", noise, said[_CONNECT_BYTES:]):
                    for _ in range(3):
                        with socket.create_connection(place, DEADLINE_S) as connection:
                            try:
                                connection.sendall(connect + after)
                            except OSError:
                                pass
                            self.assertTrue(_is_closed(connection))
                changed = connect[:-1] + bytes([connect[-1] ^ 1])
                with socket.create_connection(place, DEADLINE_S) as connection:
                    connection.sendall(changed + noise)
                    self.assertTrue(_is_closed(connection))
            self.assertIsNone(aggregator.process.poll())
            for rank in ranks:
                rank.goes_on()
            # Neither connection came as far as a Hello.
            self.assertEqual(len(re.findall("connection .* node", cluster.log(aggregator))), 2)

    def test_strangers_who_hold_on_to_libfabrics_port_keep_nobody_out(self) -> None:
        """Strangers hold more connections than the aggregator may have open files.

        They send nothing, or half a message.
        """
        with Cluster() as cluster:
            options = ["--local_transport=false"]
            job = Job(cluster, aggregator_options=options, agent_options=options)
            pid = job.aggregators[0].process.pid
            subprocess.run(["prlimit", f"--pid={pid}", "--nofile=256:256"], check=True)
            held = []
            for number in range(400):
                held.append(socket.create_connection(place_of(job.aggregators[0]), DEADLINE_S))
                self.addCleanup(held[-1].close)
                held[-1].sendall(bytes(number % 2 * 20))
            beside = Job(cluster, agent_options=options, beside=job, name="beside")
            for rank in (*job.all_ranks(), *beside.all_ranks()):
                rank.goes_on()
            # After a while all strangers are thrown out.
            for connection in held:
                self.assertTrue(_is_closed(connection))

    def test_a_burst_of_strangers_at_libfabrics_port_is_bounded(self) -> None:
        """Strangers connect as fast as they can. The aggregator never has many connections."""
        with Cluster() as cluster:
            options = ["--local_transport=false"]
            job = Job(cluster, aggregator_options=options, agent_options=options)
            descriptors = f"/proc/{job.aggregators[0].process.pid}/fd"
            usual = len(os.listdir(descriptors))
            most = 0
            for number in range(1200):
                stranger = socket.create_connection(place_of(job.aggregators[0]), DEADLINE_S)
                self.addCleanup(stranger.close)
                if number % 20 == 0:
                    most = max(most, len(os.listdir(descriptors)))
            print(f"a burst of 1200 connections: {most - usual} more descriptors at most")
            self.assertLess(most - usual, _STRANGERS_MAX + _BURST_MAX)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_strangers_who_say_a_byte_at_a_time_are_bounded_and_keep_nobody_out(self) -> None:
        """No stranger gets to the end of a greeting, however slowly it comes."""
        hello = b"TLWK" + bytes([1, 0, 0, 0]) + bytes(96)
        for setting, greeting in (
            ("--data_security=keyed", hello[:5] + b"\2" + hello[6:]),
            ("--data_security=tls", hello[:5] + b"\3" + hello[6:]),
            ("--data_transport=tcp", hello[:5] + b"\1" + hello[6:]),
            # The greeting is libfabric's own header, and a token.
            ("--data_transport=libfabric", b"\1\0\0\1" + bytes(_CONNECT_BYTES - 4)),
        ):
            with self.subTest(setting), Cluster() as cluster:
                network = [setting, "--local_transport=false"]
                job = Job(cluster, aggregator_options=network, agent_options=network)
                aggregator = job.aggregators[0]
                place, pid = place_of(aggregator), aggregator.process.pid
                strangers = _SlowStrangers(place, greeting, 300, pid)
                self.addCleanup(strangers.close)
                beside = Job(cluster, agent_options=network, beside=job, name="beside")
                for rank in (*job.all_ranks(), *beside.all_ranks()):
                    rank.goes_on()
                said = strangers.wait()
                print(f"{setting}: {max(said)} of {len(greeting)} bytes were taken at most")
                self.assertLess(max(said), len(greeting))
                self.assertLess(strangers.descriptors_max, _STRANGERS_MAX + _BURST_MAX)
                self._check_unharmed(job)

    def test_an_aggregator_says_at_its_start_who_can_connect(self) -> None:
        reads = "libfabric's tcp provider parses what anybody who reaches the port sends"
        proves = "peers prove who they are when they connect, and anybody on the path can read"
        users = " I .*users of this machine can reach {}://127.0.0.1:[0-9]+.*: {}"
        others = " W .*agents of other machines can connect to {}://.*: {}"
        with Cluster() as cluster:
            scheduler = f"--scheduler={cluster.scheduler(['--in_memory']).addresses['listen']}"
            for number, (options, said) in enumerate(
                (
                    ([], users.format("fi:tcp", reads)),
                    (["--data_transport=tcp"], users.format("tcp", proves)),
                    (["--listen=0.0.0.0:0"], others.format("fi:tcp", reads)),
                    (["--listen=0.0.0.0:0", "--data_transport=tcp"], others.format("tcp", proves)),
                    (["--listen=0.0.0.0:0", "--data_security=keyed"], ""),
                )
            ):
                with self.subTest(options):
                    name = f"a{number}"
                    own = [scheduler, f"--name={name}", "--advertise=127.0.0.1", *options]
                    aggregator = cluster.start("aggregator", name, own)
                    cluster.wait_for_log(aggregator, said or "listens on")
                    log = cluster.log(aggregator)
                    self.assertEqual("--data_security=tls (or keyed)" in log, said != "", log)

    def test_other_settings_are_told_both(self) -> None:
        with Cluster() as cluster:
            address = cluster.scheduler(["--in_memory"]).addresses["listen"]
            cluster.aggregator(address, "a0", ["--data_security=tls"])
            ranks = []
            for node in range(2):
                options = [f"--node_rank={node}", "--min_members=2", "--max_members=2"]
                options += [f"--scheduler={address}", "--data_security=keyed"]
                agent = cluster.agent(node, options)
                # The second agent may have ended before its rank comes.
                ranks += [cluster.rank(agent, "steady.py")] if node == 0 else []
            line = ranks[0].wait_for("give all daemons the same")
            self.assertIn("data_security=keyed", line)
            self.assertIn("data_security=tls", line)

    def test_a_scheduler_may_ask_for_a_setting(self) -> None:
        with Cluster() as cluster:
            scheduler = cluster.scheduler(["--in_memory", "--data_security=tls"])
            address = scheduler.addresses["listen"]
            agent = cluster.agent(0, [f"--scheduler={address}", "--data_security=keyed"])
            text = "runs with data_security=keyed, and this scheduler lets in data_security=tls"
            self._wait_for_last_words(cluster, agent, text)
            aggregator = cluster.start("aggregator", "a0", [f"--scheduler={address}", "--name=a0"])
            self.assertNotEqual(aggregator.process.wait(DEADLINE_S), 0)
            self._wait_for_last_words(cluster, aggregator, "runs with data_security=none")


if __name__ == "__main__":
    unittest.main()
