# SPDX-License-Identifier: Apache-2.0
"""Tests strangers at the port where a job's nodes meet, and strangers who listen in its place."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import types
import unittest
from collections.abc import Callable
from unittest import mock

from talweg._node import handshake, meeting_point

_SECRET = "s" * 64
_NODE = handshake.Node(1, 1, "other")
_TURNS_MAX = 600
_REFUSALS_ENOUGH = 3
_NESTED = b"[" * 16000 + b"\n"


def _saying(line: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(line)


class _First:
    """The first node's side. It runs a loop until the other node has come."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.is_complete = False
        plan = types.SimpleNamespace(
            ports=[], job="job", secret=_SECRET, size=2, local_size=1, host="first"
        )
        self.point = meeting_point.MeetingPoint(
            self.selector, plan, None, self._on_all_here, lambda _: None
        )

    def _on_all_here(self) -> None:
        self.is_complete = True

    def turn(self) -> None:
        for key, _ in self.selector.select(0.1):
            key.data()

    def connect(self, stack: contextlib.ExitStack, source: str = "127.0.0.1") -> socket.socket:
        place = ("127.0.0.1", self.point.port)
        connection = socket.create_connection(place, 60, source_address=(source, 0))
        return stack.enter_context(connection)

    def close(self) -> None:
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self.selector.close()


class MeetingPointTest(unittest.TestCase):
    def setUp(self) -> None:
        self.first = _First()
        self.addCleanup(self.first.close)
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)

    def _check_that_nodes_meet(self) -> None:
        """Checks that the other node gets in now."""
        connection = self.first.connect(self.stack, "127.0.0.2")
        failure: list[Exception] = []

        def introduce() -> None:
            try:
                handshake._introduce(connection, "job", _SECRET, None, _NODE)
            except Exception as error:
                failure.append(error)

        thread = threading.Thread(target=introduce)
        thread.start()
        for _ in range(_TURNS_MAX):
            self.first.turn()
            if self.first.is_complete or failure:
                break
        thread.join()
        self.assertEqual(failure, [])
        self.assertTrue(self.first.is_complete)

    def test_what_is_no_message_ends_its_own_connection(self) -> None:
        for line in (_NESTED, b'{"a":' * 3000 + b"\n", b"5\n", b"1" * 9000 + b"\n", b"\n"):
            with self.subTest(line[:10]):
                connection = self.first.connect(self.stack)
                connection.sendall(line)
                answer = b""
                connection.setblocking(False)
                for _ in range(_TURNS_MAX):
                    self.first.turn()
                    with contextlib.suppress(BlockingIOError):
                        answer = connection.recv(4096)
                        break
                self.assertIn("not a line of this protocol", json.loads(answer)["refused"])
        self._check_that_nodes_meet()

    def test_whoever_says_nothing_keeps_nobody_out(self) -> None:
        for _ in range(3 * meeting_point._STRANGERS_MAX):
            self.first.connect(self.stack)
            self.first.turn()
        self._check_that_nodes_meet()


class ReachTest(unittest.TestCase):
    """Another process has the port at which nodes look for the first node's keeper."""

    def _said_of(self, answer: Callable[[socket.socket], None]) -> str:
        """Returns the error about an address at which `answer` serves each connection."""
        said: dict[str, str] = {}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            place = listener.getsockname()

            def serve() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = listener.accept()
                        with connection, contextlib.suppress(OSError):
                            connection.recv(4096)
                            answer(connection)

            thread = threading.Thread(target=serve)
            thread.start()
            turns = iter(range(_REFUSALS_ENOUGH))
            found = handshake.reach(
                lambda: ([place], _SECRET),
                "job",
                None,
                _NODE,
                said,
                lambda: next(turns, None) is not None,
            )
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
        self.assertIsNone(found)
        return said[f"127.0.0.1:{place[1]}"]

    def test_whatever_it_says_the_node_looks_on(self) -> None:
        wrong_proof = json.dumps({"nonce": "1", "proof": "\u00e4"}).encode() + b"\n"
        for line, said in (
            (_NESTED, "not a line of this protocol"),
            (b"5\n", "not a line of this protocol"),
            (b"x" * 20000, "answers no line"),
            (wrong_proof, "another secret"),
            (b'{"nonce": 1e999, "proof": "\\ud800"}\n', "another secret"),
        ):
            with self.subTest(line[:10]):
                self.assertIn(said, self._said_of(_saying(line)))

    def test_what_it_says_steers_no_terminal(self) -> None:
        line = json.dumps({"refused": "a\x1b]0;b\n" + "c" * 1000}).encode() + b"\n"
        said = self._said_of(_saying(line))
        self.assertTrue(said.isprintable(), said)
        self.assertLess(len(said), 300)

    def test_one_that_says_it_byte_by_byte_holds_up_nobody(self) -> None:
        def trickle(connection: socket.socket) -> None:
            while True:
                connection.sendall(b"x")
                threading.Event().wait(0.01)

        with mock.patch.object(handshake, "_ANSWER_S", 0.2):
            self.assertIn("timed out", self._said_of(trickle))


if __name__ == "__main__":
    unittest.main()
