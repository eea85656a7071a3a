# SPDX-License-Identifier: Apache-2.0
"""Whose sockets of this host are, by the kernel's word."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import unittest
from collections.abc import Iterator
from unittest import mock

from talweg._node import socket_owners

_STRANGER = 65534
_DEADLINE_S = 60
_FAMILIES = (
    ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ("::", "127.0.0.1", "127.0.0.1"),  # A socket for both serves IPv4.
    ("::1", "::1", "[::1]"),
)[: 3 if socket.has_dualstack_ipv6() else 1]


def _listen(host: str) -> socket.socket:
    if host == "::":
        return socket.create_server((host, 0), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family)


@contextlib.contextmanager
def _strangers_port(host: str) -> Iterator[int]:
    """A port at which a process of another user sends a byte to all who connect."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(_DEADLINE_S)
            os.setuid(_STRANGER)
            with _listen(host) as listener:
                os.write(writer, str(listener.getsockname()[1]).encode())
                os.close(writer)
                kept = []
                while True:
                    kept.append(listener.accept()[0])
                    kept[-1].send(b"x")
        finally:
            os._exit(1)
    os.close(writer)
    try:
        with open(reader, "rb") as stream:
            port = stream.read()
        if not port:
            print("SKIPPED: no process of another user can be started here")
            raise unittest.SkipTest("no process of another user can be started here")
        yield int(port)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class SocketOwnersTest(unittest.TestCase):
    def test_ones_own(self) -> None:
        for listens, dials, shown in _FAMILIES:
            with self.subTest(listens=listens), _listen(listens) as listener:
                port = listener.getsockname()[1]
                self.assertIsNone(socket_owners.stranger_listens(f"{shown}:{port}"))
                with socket.create_connection((dials, port)) as caller:
                    answered, _ = listener.accept()
                    with answered:
                        self.assertIsNone(socket_owners.stranger_at(caller))
                        self.assertIsNone(socket_owners.stranger_at(answered))
                        self._check_as_another_user(caller, f"{shown}:{port}")

    def _check_as_another_user(self, caller: socket.socket, listens: str) -> None:
        own = os.getuid()
        stranger = f"user {own}" if own else None  # What is root's is no stranger's.
        with mock.patch.object(os, "getuid", return_value=own + 1):
            self.assertEqual(socket_owners.stranger_at(caller), stranger)
            self.assertEqual(socket_owners.stranger_listens(listens), stranger)

    def test_anothers(self) -> None:
        for listens, dials, shown in _FAMILIES:
            with self.subTest(listens=listens), _strangers_port(listens) as port:
                listener = socket_owners.stranger_listens(f"{shown}:{port}")
                self.assertEqual(listener, f"user {_STRANGER}")
                with socket.create_connection((dials, port), _DEADLINE_S) as caller:
                    caller.recv(1)
                    self.assertEqual(socket_owners.stranger_at(caller), f"user {_STRANGER}")

    def test_a_connection_that_nobody_has_accepted(self) -> None:
        with _listen("127.0.0.1") as listener:
            with socket.create_connection(listener.getsockname()) as caller:
                self.assertEqual(socket_owners.stranger_at(caller), "nobody")

    def test_nobody_listens(self) -> None:
        with _listen("127.0.0.1") as listener:
            host, port = listener.getsockname()
        self.assertEqual(socket_owners.stranger_listens(f"{host}:{port}"), "nobody")

    def test_what_is_no_address_of_this_host_is_not_looked_at(self) -> None:
        for address in ("192.0.2.1:5", "[2001:db8::1]:5", "localhost:5", "unix:/a", "", "5"):
            self.assertIsNone(socket_owners.stranger_listens(address), address)

    def test_a_kernel_that_shows_no_sockets(self) -> None:
        with mock.patch.object(socket_owners, "_TABLES", ("/nowhere",)):
            self.assertIsNone(socket_owners.stranger_listens("127.0.0.1:1"))


if __name__ == "__main__":
    unittest.main()
