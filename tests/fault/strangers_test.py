# SPDX-License-Identifier: Apache-2.0
"""Tests another user of the same machine, without any credential, who attacks a running job."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

import other_user
import raw_http2
from cluster import DEADLINE_S, PROGRAMS, RUNFILES, TOOL, Cluster, Daemon, Job

# It does the same as other_user.BECOME, but the user has no right to other users' files.
_BECOME = (
    "setpriv",
    f"--reuid={other_user.UID}",
    f"--regid={other_user.UID}",
    "--clear-groups",
    "--bounding-set=-all",
    "--inh-caps=-all",
    "--ambient-caps=-all",
    "--",
)
# How much a stranger may make a port keep for one connection.
_KEPT_KIB_MAX = 48 << 10
# Prints the command lines and environments of all processes that may be read.
_LOOK_AROUND = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr -c '[:print:]' '\\n'"
# Connects to an abstract name, sends a message of that many bytes, and prints what it is told.
_CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.settimeout(60)
    connection.connect(sys.argv[1].replace("@", "\\0"))
    if int(sys.argv[2]):
        connection.send(bytes(int(sys.argv[2])))
    print("told:", connection.recv(4096)[16:].decode().strip("\\0"))
"""
_OK = "code 0 "
_DENIED = "code 7 "
_PRECONDITION = "code 9 "


def _resident_kib(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


def _send_half(address: str, method: str, declared: int) -> None:
    """Begins 150 calls with messages of that size. Sends as much of each as the other end takes, up
    to 4 MiB, but never the end.
    """
    most = min(declared - 1, 4 << 20)
    with raw_http2.RawHttp2(address, DEADLINE_S) as connection:
        connection.take(DEADLINE_S)
        left = {connection.call(method): most for _ in range(150)}
        first = b"\0" + declared.to_bytes(4, "big")
        while not connection.is_over:
            moved = 0
            for stream, bytes_left in left.items():
                if stream in connection.ended or bytes_left == 0:
                    continue
                head = first if bytes_left == most else b""
                sent = connection.send(stream, head + bytes(min(bytes_left, 1 << 16)))
                left[stream] = max(0, bytes_left - sent)
                moved += sent
            # The other end takes bytes at once, or not at all.
            if not connection.take(0.2) and moved == 0:
                return


class StrangersTest(unittest.TestCase):
    def setUp(self) -> None:
        # The tested files lie where only root may look.
        directory = tempfile.TemporaryDirectory(prefix="talweg.", dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.public = Path(directory.name)
        self.public.chmod(0o755)
        for program in ("tests/fault/stranger", "services/agent/talweg-agent"):
            shutil.copy(RUNFILES / program, self.public)
        self.stranger = self.public / "stranger"

    def _as_stranger(self, *line: object) -> str:
        done = subprocess.run(
            [*_BECOME, *map(str, line)],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.stdout + done.stderr

    def _incarnation(self, cluster: Cluster, daemon: Daemon) -> str:
        """Returns the incarnation. Only the daemon's log has it, which the stranger cannot read."""
        found = re.search(r"talweg-\w+\[([0-9a-f]+)\]", cluster.log(daemon))
        assert found is not None
        return found[1]

    def _check_refused(self, output: str, codes: Sequence[str]) -> None:
        self.assertNotIn(_OK, output)
        self.assertTrue(any(code in output for code in codes), output)

    def test_what_is_shown_lets_nobody_in(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, scheduler_options=["--secret_file=none"])
            address = job.scheduler.addresses["listen"]
            shown = self._as_stranger(self.stranger, address, "look")
            self.assertIn("data_address", shown)
            self.assertIsNone(re.search(r"//[^/\"]*/[0-9a-f]{16}", shown), shown)
            self.assertNotIn("local:", shown)
            self.assertIsNone(re.search(r"incarnation: [1-9]", shown), shown)
            for daemon in (*job.agents, *job.aggregators):
                self.assertNotIn(self._incarnation(cluster, daemon), shown)
                self.assertNotRegex(cluster.log(daemon), r"//[^/ ]*/[0-9a-f]{16}")
            self.assertNotRegex(cluster.log(job.scheduler), r"//[^/ ]*/[0-9a-f]{16}|local:")
            self._disturb_data_port(job)
            for rank in job.all_ranks():
                rank.goes_on()

    def _disturb_data_port(self, job: Job) -> None:
        """Sends a member's first bytes, except for the token."""
        address = job.aggregators[0].addresses["data"]
        found = re.fullmatch(r"fi:tcp://([\d.]+):(\d+),local", address)
        self.assertIsNotNone(found, address)
        assert found is not None
        for _ in range(3):
            with socket.create_connection((found[1], int(found[2])), DEADLINE_S) as connection:
                connection.settimeout(DEADLINE_S)
                try:
                    connection.sendall(b"\x01\x00\x00\x01" + bytes(44) + b"\x01" + bytes(63))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                except OSError as error:  # The stranger may be thrown out in any of these calls.
                    self.assertIn(error.errno, (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN))
        self.assertIsNone(job.aggregators[0].process.poll())

    def test_shared_memory_is_refused_to_another_user(self) -> None:
        """The socket of an aggregator that has a port has no file, so anybody may connect to it."""
        with Cluster() as cluster:
            job = Job(cluster)
            name = self._local_name(job.aggregators[0])
            # The stranger is told so before it has said anything.
            shown = self._as_stranger("python3", "-I", "-c", _CONNECT, name, 0)
            self.assertRegex(
                shown, rf"told: process \d+ runs as user {other_user.UID}, this one as"
            )
            # root may speak. This is no handshake.
            done = subprocess.run(
                [sys.executable, "-I", "-c", _CONNECT, name, "256"],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            self.assertIn("told: it is not a Talweg process", done.stdout, done.stderr)
            for rank in job.all_ranks():
                rank.goes_on()

    def _local_name(self, daemon: Daemon) -> str:
        """Returns the abstract name on which the process listens."""
        descriptors = Path(f"/proc/{daemon.process.pid}/fd")
        inodes = {os.readlink(each).strip("socket:[]") for each in descriptors.iterdir()}
        lines = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
        (name,) = {line[7] for line in lines if line[6] in inodes and line[7:8] != []}
        self.assertRegex(name, "^@talweg-[0-9a-f]{16}$")
        return name

    def test_messages_that_never_end_are_not_kept(self) -> None:
        """gRPC keeps the beginning of a message before the service sees the call, up to a limit."""
        with Cluster() as cluster:
            job = Job(cluster, scheduler_options=["--secret_file=none"])
            for daemon, place, method in (
                (job.scheduler, "listen", "talweg.scheduler.v1.MembershipService/Join"),
                (job.aggregators[0], "admin", "talweg.aggregator.v1.AdminService/GetStatus"),
                (job.agents[0], "admin", "talweg.agent.v1.AdminService/GetStatus"),
            ):
                for declared in (60 << 20, 60 << 10):
                    with self.subTest(method, declared=declared):
                        before = _resident_kib(daemon)
                        _send_half(daemon.addresses[place], f"/{method}", declared)
                        self.assertLess(_resident_kib(daemon) - before, _KEPT_KIB_MAX)
                with (
                    self.subTest(method, metadata=1 << 20),
                    raw_http2.RawHttp2(daemon.addresses[place], DEADLINE_S) as connection,
                ):
                    before = _resident_kib(daemon)
                    connection.take(DEADLINE_S)  # It takes the settings, to which gRPC then holds.
                    for _ in range(100):
                        connection.call(f"/{method}", {"x": b"x" * (1 << 20)})
                    while connection.take(0.2):
                        pass
                    self.assertLess(_resident_kib(daemon) - before, _KEPT_KIB_MAX)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_nobody_takes_a_members_place(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, scheduler_options=["--secret_file=none"])
            address = job.scheduler.addresses["listen"]
            name = self._incarnation(cluster, job.agents[1])
            for incarnation, codes in (("0", (_PRECONDITION,)), (name, (_DENIED,))):
                for call in ("leave", "renew", "lost"):
                    with self.subTest(call=call, incarnation=incarnation):
                        line: list[str | Path] = [
                            self.stranger,
                            address,
                            call,
                            "default",
                            "1",
                            incarnation,
                        ]
                        self._check_refused(self._as_stranger(*line), codes)
            own = self._as_stranger(
                self.public / "talweg-agent",
                f"--scheduler={address}",
                "--node_rank=1",
                "--min_members=2",
                "--max_members=2",
                f"--socket_path=/tmp/talweg-{os.getpid()}-stranger.sock",
            )
            self.assertIn("node rank 1 is held by", own)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_nobody_sends_an_aggregator_away(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, scheduler_options=["--secret_file=none"])
            address = job.scheduler.addresses["listen"]
            name = self._incarnation(cluster, job.aggregators[0])
            for incarnation, codes in (("0", ("code 5 ",)), (name, (_DENIED,))):
                line: list[str | Path] = [self.stranger, address, "deregister", incarnation]
                self._check_refused(self._as_stranger(*line), codes)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_with_a_job_secret_nobody_joins(self) -> None:
        with Cluster() as cluster:
            secret = cluster.directory / "secret"
            secret.touch(mode=0o600)
            secret.write_text("0123456789abcdef" * 4 + "\n")
            with_secret = [f"--secret_file={secret}"]
            job = Job(
                cluster,
                scheduler_options=with_secret,
                aggregator_options=with_secret,
                agent_options=with_secret,
            )
            address = job.scheduler.addresses["listen"]
            for name in ("default", "another"):
                line: list[str | Path] = [self.stranger, address, "join", name, "1"]
                self._check_refused(self._as_stranger(*line), (_DENIED,))
            admin = job.agents[0].addresses["admin"]
            self._check_refused(self._as_stranger(self.stranger, admin, "trace"), (_DENIED,))
            own = self._as_stranger(
                self.public / "talweg-agent",
                f"--scheduler={address}",
                "--job=another",
                f"--socket_path=/tmp/talweg-{os.getpid()}-stranger.sock",
            )
            self.assertIn("shows no job secret", own)
            for rank in job.all_ranks():
                rank.goes_on()
            # The file's content is nowhere where another user may look.
            for daemon in (job.scheduler, *job.aggregators, *job.agents):
                self.assertNotIn("0123456789abcdef", cluster.log(daemon))
                shown = Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes()
                self.assertNotIn(b"0123456789abcdef", shown)

    def test_a_run_on_one_machine_is_out_of_reach(self) -> None:
        environment = dict(os.environ, TMPDIR=str(self.public))
        environment.pop("XDG_RUNTIME_DIR", None)
        line = [str(TOOL), "run", "--nodes=2", "--", sys.executable, "-P", "-u"]
        run = subprocess.Popen(
            [*line, str(PROGRAMS / "steady.py")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert run.stdout is not None
            for text in run.stdout:
                if "step 3 of rank" in text:
                    break
            (directory,) = self.public.glob("talweg-run-*")
            self.assertEqual(directory.stat().st_mode & 0o777, 0o700)
            self.assertEqual((directory / "secret").stat().st_mode & 0o777, 0o600)
            self.assertIn("Permission denied", self._as_stranger("ls", directory))
            self.assertIn("Permission denied", self._as_stranger("cat", directory / "secret"))
            # The secret is not there either.
            shown = self._as_stranger("sh", "-c", _LOOK_AROUND)
            self.assertIn("steady.py", shown)
            self.assertIn(f"{directory}/scheduler.sock", shown)  # The path alone lets nobody in.
            self.assertNotIn((directory / "secret").read_text().strip()[:16], shown)
            self.assertNotIn(f"TMPDIR={self.public}", shown)  # The environment is not shown.
            sockets = sorted(path for path in directory.iterdir() if path.is_socket())
            self.assertIn(directory / "scheduler.sock", sockets)
            for path in sockets:
                shown = self._as_stranger(self.stranger, f"unix:{path}", "look")
                self.assertIn("ListJobs: code 14 ", shown)
            # The job's own user finds it. If the user has several runs, the tool asks which one.
            address = f"unix:{directory}/scheduler.sock"
            for options in ([], [f"--scheduler={address}"]):
                status = subprocess.run(
                    [str(TOOL), "status", *options],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE_S,
                    check=False,
                )
                self.assertIn(address, status.stdout + status.stderr)
            self.assertEqual(status.returncode, 0, status.stderr)
            self.assertIn("job 'run'", status.stdout)
            for text in run.stdout:
                if "step 6 of rank" in text:
                    break
        finally:
            run.send_signal(signal.SIGTERM)
            run.communicate(timeout=DEADLINE_S)


if __name__ == "__main__":
    reason = other_user.why_not()
    if reason:
        print(f"SKIPPED: {reason}")
        sys.exit(0)
    unittest.main()
