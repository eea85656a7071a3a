# SPDX-License-Identifier: Apache-2.0
"""Tests that the baselines' servers free their port and can take it again."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
import unittest
from pathlib import Path

_DIRECTORY = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "benchmarks" / "baselines"
_DEADLINE_S = 60


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SocketsTest(unittest.TestCase):
    def _serve(self, *command: str) -> subprocess.Popen[bytes]:
        server = subprocess.Popen([str(_DIRECTORY / command[0]), *command[1:]])
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return server

    def _connect(self, server: subprocess.Popen[bytes], port: int) -> socket.socket:
        end = time.monotonic() + _DEADLINE_S
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                self.assertIsNone(server.poll(), "the server has ended")
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
                continue
            self.addCleanup(connection.close)
            connection.settimeout(_DEADLINE_S)
            # A hello, and a push of one element.
            connection.sendall(struct.pack("<IQQf", 0, 1, 4, 2.5))
            self.assertEqual(len(connection.recv(1)), 1)
            return connection

    def test_a_server_takes_the_port_of_one_that_has_just_ended(self) -> None:
        for command in (("socket_ps", "server"), ("tcp_echo",)):
            with self.subTest(command=command):
                port = _free_port()
                first = self._serve(*command, str(port), "1")
                connection = self._connect(first, port)
                first.kill()
                first.wait(_DEADLINE_S)
                # The server has closed first, so its side waits for late packets.
                while connection.recv(100):
                    pass
                connection.close()
                self._connect(self._serve(*command, str(port), "1"), port)


if __name__ == "__main__":
    unittest.main()
