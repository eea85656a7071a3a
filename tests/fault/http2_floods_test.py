# SPDX-License-Identifier: Apache-2.0
"""Tests clients of a gRPC port that break the rules of HTTP/2, as an attacker's program would."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

import raw_http2
from cluster import DEADLINE_S, TOOL, Cluster, Daemon, Job
from raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    field,
    frame,
    number,
    request,
)

# The server ends a flood's connection before it has taken so much. The system buffers some MiB.
_FLOOD_BYTES = 24 << 20
_GROWTH_KIB_MAX = 16 << 10
_STREAMS = range(1, 1 << 30, 2)


def _resident_kib(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


def _head(stream: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block)


def _long_metadata(method: str) -> Iterator[bytes]:
    part = field("x", b"y" * 4000) * 4
    for stream in _STREAMS:
        yield _head(stream, request(method), 0)
        yield from (frame(CONTINUATION, 0, stream, part) for _ in range(60))
        yield frame(CONTINUATION, END_HEADERS, stream, b"")


def _metadata_that_never_ends(method: str) -> Iterator[bytes]:
    yield _head(1, request(method), 0)
    while True:
        yield frame(CONTINUATION, 0, 1, field("x", b"y" * 4000) * 4)


def _metadata_of_one_byte_each(method: str) -> Iterator[bytes]:
    """Yields metadata in which the server stores a field, and each further byte repeats it."""
    yield _head(1, request(method) + b"\x40\x01a\x01b", 0)
    while True:
        yield frame(CONTINUATION, 0, 1, b"\xbe" * FRAME_BYTES_MAX)


def _metadata_in_small_frames(method: str) -> Iterator[bytes]:
    """Yields metadata in many frames. gRPC limits each frame only by itself."""
    yield _head(1, request(method) + b"\x40\x01a\x01b", 0)
    while True:
        yield frame(CONTINUATION, 0, 1, b"\xbe" * 200) * 50


def _a_text_that_never_ends(method: str) -> Iterator[bytes]:
    yield _head(1, request(method) + b"\0\x01a" + number(1 << 30), 0)
    while True:
        yield frame(CONTINUATION, 0, 1, bytes(FRAME_BYTES_MAX))


def _calls(method: str, flags: int, after: Callable[[int], bytes]) -> Iterator[bytes]:
    for stream in _STREAMS:
        yield _head(stream, request(method), END_HEADERS | flags) + after(stream)


def _half_calls(method: str) -> Iterator[bytes]:
    return _calls(method, 0, lambda _: b"")


def _half_messages(method: str) -> Iterator[bytes]:
    return _calls(method, 0, lambda stream: frame(DATA, 0, stream, b"\0\0\0\xff\0"))


def _calls_beyond_what_is_allowed(method: str) -> Iterator[bytes]:
    return _calls(method, END_STREAM, lambda _: b"")


def _calls_that_are_reset(method: str) -> Iterator[bytes]:
    return _calls(method, 0, lambda stream: frame(RST_STREAM, 0, stream, b"\0\0\0\x08"))


def _repeat(one: bytes) -> Callable[[str], Iterator[bytes]]:
    def flood(_method: str) -> Iterator[bytes]:
        while True:
            yield one * 100

    return flood


def _empty_data(method: str) -> Iterator[bytes]:
    yield _head(1, request(method))
    while True:
        yield frame(DATA, 0, 1, b"") * 100


_FLOODS: dict[str, Callable[[str], Iterator[bytes]]] = {
    "long metadata": _long_metadata,
    "metadata that never ends": _metadata_that_never_ends,
    "metadata of one byte each": _metadata_of_one_byte_each,
    "metadata in small frames": _metadata_in_small_frames,
    "a text that never ends": _a_text_that_never_ends,
    "half calls": _half_calls,
    "half messages": _half_messages,
    "calls beyond what is allowed": _calls_beyond_what_is_allowed,
    "calls that are reset": _calls_that_are_reset,
    "pings": _repeat(frame(PING, 0, 0, bytes(8))),
    "settings": _repeat(frame(SETTINGS, 0, 0, b"")),
    "windows": _repeat(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")),
    "frames of no known kind": _repeat(frame(42, 0, 0, b"")),
    "empty data": _empty_data,
}


def _connect(address: str, tls: bool) -> socket.socket:
    """Connects without a certificate."""
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(DEADLINE_S)
        connection.connect(address.removeprefix("unix:"))
        return connection
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), DEADLINE_S)
    if not tls:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(connection)


def _carries(connection: socket.socket, data: bytes) -> bool:
    """Sends the data, and reads what comes meanwhile. Returns False when the server has ended the
    connection.
    """
    left = memoryview(data)
    while left:
        readable, writable, _ = select.select([connection], [connection], [], DEADLINE_S)
        if not readable and not writable:
            raise TimeoutError
        if readable and not connection.recv(1 << 20):
            return False
        if writable:
            left = left[connection.send(left) :]
    return True


def _is_ended(connection: socket.socket, flood: Iterator[bytes], acknowledges: bool) -> bool:
    """Sends the flood. Returns whether the server ends the connection because of it.

    It reads nothing, except from a local socket: that takes little that nobody reads, and a server
    that cannot answer stops reading as well.
    """
    is_local = connection.family == socket.AF_UNIX
    sent = 0
    try:
        connection.sendall(raw_http2.PREFACE + frame(SETTINGS, 0, 0, b""))
        if acknowledges:
            connection.recv(9)  # The rest of the frame may stay unread.
            connection.sendall(frame(SETTINGS, ACK, 0, b""))
        for data in flood:
            if sent > _FLOOD_BYTES:
                return False
            if not is_local:
                connection.sendall(data)
            elif not _carries(connection, data):
                return True
            sent += len(data)
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


class Http2FloodsTest(unittest.TestCase):
    def _flood(self, daemon: Daemon, address: str, method: str, tls: bool = False) -> None:
        """Sends all floods of a stranger, one after the other."""
        for name, flood in _FLOODS.items():
            for acknowledges in (False, True):
                with self.subTest(name, address=address, acknowledges=acknowledges):
                    before = _resident_kib(daemon)
                    with _connect(address, tls) as connection:
                        self.assertTrue(_is_ended(connection, flood(method), acknowledges))
                    self.assertLess(_resident_kib(daemon) - before, _GROWTH_KIB_MAX)
        self.assertIsNone(daemon.process.poll())

    def test_a_flood_ends_its_own_connection_and_no_other(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, scheduler_options=["--secret_file=none"])
            for daemon, place, method in (
                (job.scheduler, "listen", "/talweg.scheduler.v1.AdminService/ListJobs"),
                (job.scheduler, "listen", "/grpc.health.v1.Health/Check"),
                (job.scheduler, "listen", "/nobodys/Method"),
                (job.aggregators[0], "admin", "/talweg.aggregator.v1.AdminService/GetStatus"),
                (job.agents[0], "admin", "/talweg.agent.v1.AdminService/GetStatus"),
            ):
                self._flood(daemon, daemon.addresses[place], method)
            for rank in job.all_ranks():
                rank.goes_on()
            # No lease ended because of the floods.
            self.assertNotIn("lease", cluster.log(job.scheduler))

    def test_tls_changes_nothing(self) -> None:
        with Cluster() as cluster:
            pki = cluster.directory / "pki"
            subprocess.run(
                [str(TOOL), "certs", "--days=2", str(pki), "scheduler", "viewer"],
                check=True,
                capture_output=True,
                timeout=DEADLINE_S,
            )
            options = ["--in_memory", "--secret_file=none", f"--tls_dir={pki}/scheduler"]
            scheduler = cluster.scheduler(options)
            address = scheduler.addresses["listen"]
            self._flood(scheduler, address, "/talweg.scheduler.v1.AdminService/ListJobs", True)
            self._check_served(address, f"--tls-dir={pki}/viewer")

    def test_failed_handshakes_fill_no_disk(self) -> None:
        """gRPC logs a line for each failed handshake, and the log stays small."""
        count = 200
        with Cluster() as cluster:
            pki = cluster.directory / "pki"
            line = [str(TOOL), "certs", "--days=2", str(pki), "scheduler"]
            subprocess.run(line, check=True, capture_output=True, timeout=DEADLINE_S)
            options = ["--in_memory", "--secret_file=none", f"--tls_dir={pki}/scheduler"]
            scheduler = cluster.scheduler(options)
            before = len(cluster.log(scheduler).splitlines())
            for _ in range(count):
                with _connect(scheduler.addresses["listen"], False) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    with contextlib.suppress(OSError):
                        while connection.recv(1024):
                            pass
            grown = len(cluster.log(scheduler).splitlines()) - before
            self.assertLess(grown, count // 2)
            self.assertIn("] gRPC: Handshake failed", cluster.log(scheduler))

    def test_nor_does_a_socket(self) -> None:
        with Cluster() as cluster, tempfile.TemporaryDirectory(dir="/tmp") as directory:
            address = f"unix:{directory}/s"
            options = [f"--listen={address}", "--in_memory", "--secret_file=none"]
            scheduler = cluster.start("scheduler", "scheduler", options)
            self._flood(scheduler, address, "/talweg.scheduler.v1.AdminService/ListJobs")
            self._check_served(address)

    def _check_served(self, address: str, *options: str) -> None:
        line = [str(TOOL), "status", f"--scheduler={address}", *options]
        done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_half_requests_of_many_connections_are_bounded_together(self) -> None:
        method = "/talweg.scheduler.v1.AdminService/ListJobs"
        message = b"\0\0\0\xff\0" + bytes(500)
        half = b"".join(
            _head(stream, request(method)) + frame(DATA, 0, stream, message)
            for stream in _STREAMS[:120]
        )
        with Cluster() as cluster, contextlib.ExitStack() as held:
            # The user who holds the half requests also asks for the status below, so a peer's calls
            # are not limited here.
            options = ["--secret_file=none", "--peer_calls_per_second_max=0"]
            job = Job(cluster, scheduler_options=options)
            before = _resident_kib(job.scheduler)
            address = job.scheduler.addresses["listen"]
            connections = [held.enter_context(_connect(address, False)) for _ in range(200)]
            for connection in connections:
                with contextlib.suppress(OSError):  # The server may end the connection meanwhile.
                    connection.sendall(raw_http2.PREFACE + frame(SETTINGS, 0, 0, b""))
                    connection.recv(9)
                    connection.sendall(frame(SETTINGS, ACK, 0, b"") + half)
            self._check_served(address)
            grown = _resident_kib(job.scheduler) - before
            print(f"half requests of {len(connections)} connections: {grown} KiB more")
            self.assertLess(grown, 96 << 10)
            for rank in job.all_ranks():
                rank.goes_on()
            self.assertNotIn("lease", cluster.log(job.scheduler))

    def test_clients_are_told_what_they_may_send(self) -> None:
        with Cluster() as cluster:
            scheduler = cluster.scheduler(["--in_memory", "--secret_file=none"])
            with _connect(scheduler.addresses["listen"], False) as connection:
                connection.sendall(raw_http2.PREFACE + frame(SETTINGS, 0, 0, b""))
                size, kind = connection.recv(3), connection.recv(1)
                self.assertEqual(kind, bytes([SETTINGS]))
                payload = connection.recv(5 + int.from_bytes(size, "big"), socket.MSG_WAITALL)[5:]
            settings = {
                payload[i : i + 2]: payload[i + 2 : i + 6] for i in range(0, len(payload), 6)
            }
            self.assertEqual(int.from_bytes(settings[b"\0\3"], "big"), 128)  # The most open calls.
            self.assertEqual(int.from_bytes(settings[b"\0\6"], "big"), 8192)  # A call's metadata.


if __name__ == "__main__":
    if os.environ.get("TALWEG_SANITIZER") == "tsan":
        print("SKIPPED: gRPC is a shared library here, and nothing guards what it reads")
        sys.exit(0)
    unittest.main()
