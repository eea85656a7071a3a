# SPDX-License-Identifier: Apache-2.0
"""Hosts made of namespaces reach each other, over links that can be cut and shaped."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from netns import Network, NotPermitted

_ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
total = 0
while data := connection.recv(1 << 20):
    total += len(data)
connection.sendall(str(total).encode())
"""
_SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
connection.sendall(bytes(int(sys.argv[3])))
connection.shutdown(socket.SHUT_WR)
print(connection.recv(100).decode())
"""


def send(network: Network, source: str, target: str, count: int) -> int:
    """The bytes that have come through TCP."""
    echo = [*network.enter(target), sys.executable, "-c", _ECHO, network.address(target)]
    with subprocess.Popen(echo, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        line = [*network.enter(source), sys.executable, "-c", _SEND, network.address(target)]
        result = subprocess.run(
            [*line, port, str(count)], capture_output=True, text=True, check=False, timeout=120
        )
        server.kill()
    return int(result.stdout or 0)


class NetnsTest(unittest.TestCase):
    def test_hosts_reach_each_other_over_their_interfaces(self) -> None:
        with Network(["a", "b", "c"], congestion_control="reno") as network:
            before = network.bytes_moved("b")
            self.assertEqual(send(network, "a", "b", 1_000_000), 1_000_000)
            received, sent = (now - then for now, then in zip(network.bytes_moved("b"), before))
            self.assertGreater(received, 1_000_000)
            self.assertLess(received, 1_200_000)
            self.assertLess(sent, 200_000)
            self.assertLess(sum(network.bytes_moved("c")), 100_000)
            control = "cat /proc/sys/net/ipv4/tcp_congestion_control"
            line = [*network.enter("a"), "sh", "-c", control]
            self.assertEqual(subprocess.check_output(line, text=True), "reno\n")

    def test_an_unplugged_host_is_not_reached(self) -> None:
        with Network(["a", "b"]) as network:
            probe = [*network.enter("a"), "sh", "-c"]
            carrier = "cat /proc/net/dev >/dev/null; ip -o link show eth0"
            network.unplug("a")
            self.assertIn("NO-CARRIER", subprocess.check_output([*probe, carrier], text=True))
            network.plug("a")
            self.assertNotIn("NO-CARRIER", subprocess.check_output([*probe, carrier], text=True))
            self.assertEqual(send(network, "a", "b", 1000), 1000)

    def test_a_shaped_link_is_no_faster_than_told(self) -> None:
        with Network(["a", "b"], congestion_control="reno") as network:
            network.shape("a", 80_000_000)
            begin_s = time.monotonic()
            self.assertEqual(send(network, "a", "b", 4_000_000), 4_000_000)
            # 10 MB/s after the bucket, which a slow machine cannot break.
            self.assertGreater(time.monotonic() - begin_s, 0.35)

    def test_a_host_at_the_end_of_a_long_cable_is_that_far(self) -> None:
        with Network(["a", "b"]) as network:
            network.delay("b", 20)
            network.shape("b", 400_000_000)
            begin_s = time.monotonic()
            self.assertEqual(send(network, "a", "b", 8_000_000), 8_000_000)
            # A handshake, the bytes, and the answer, which a slow machine cannot break.
            self.assertGreater(time.monotonic() - begin_s, 0.08)

    def test_nothing_is_left(self) -> None:
        with Network(["a", "b"]) as network:
            network.delay("a", 1)
            pids = [network.pid(name) for name in ("a", "b")]
        for pid in pids:
            self.assertFalse(Path(f"/proc/{pid}").exists())

    def test_a_namespace_ends_with_the_process_that_made_it(self) -> None:
        script = (
            "import os, signal; from netns import Network\n"
            "network = Network(['a']); network.__enter__()\n"
            "print(network.pid('a'), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
        )
        output = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False
        ).stdout
        gone = threading.Event()
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and Path(f"/proc/{int(output)}/ns").exists():
            gone.wait(0.02)
        status = Path(f"/proc/{int(output)}/stat")
        self.assertTrue(not status.exists() or ") Z " in status.read_text())

    def test_hosts_need_names(self) -> None:
        for bad in ([], ["a", "a"]):
            with self.assertRaises(ValueError):
                Network(bad)


if __name__ == "__main__":
    try:
        with Network(["probe"]):
            pass
    except NotPermitted as refusal:
        print(f"SKIPPED: {refusal}")
        sys.exit(0)
    unittest.main()
