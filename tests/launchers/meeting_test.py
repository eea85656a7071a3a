# SPDX-License-Identifier: Apache-2.0
"""Tests strangers at the port where a job's nodes meet, and strangers who listen in its place."""

from __future__ import annotations

import contextlib
import itertools
import json
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import talweg
from talweg._node import handshake, meeting_point

_SECRET = "s" * 64
_NODE = handshake.Node(1, 1, "other")
_TURNS_MAX = 600
_REFUSALS_ENOUGH = 3
_NESTED = b"[" * 16000 + b"\n"
_DEADLINE_S = 60


def _saying(line: bytes) -> Callable[[socket.socket], None]:
    """`PORT` in the line stands for the port at which it is said."""

    def say(connection: socket.socket) -> None:
        connection.sendall(line.replace(b"PORT", b"%d" % connection.getsockname()[1]))

    return say


class _First:
    """The first node's side. It runs a loop until the other nodes have come."""

    def __init__(self, size: int = 2, ports: list[int] | None = None, host: str = "") -> None:
        self.selector = selectors.DefaultSelector()
        self.is_complete = False
        self.scheduler = ""
        plan = types.SimpleNamespace(
            ports=ports or [], job="job", secret=_SECRET, size=size, local_size=1, host="first"
        )
        plan.name = "job-1"

        def bind(_: object, ports: list[int]) -> socket.socket:
            return socket.create_server((host, ports[0]))

        patch = mock.patch.object(meeting_point.MeetingPoint, "_bind", bind)
        with patch if host else contextlib.nullcontext():
            self.point = meeting_point.MeetingPoint(
                self.selector, plan, None, self._on_all_here, lambda _: None
            )

    def _on_all_here(self) -> None:
        self.is_complete = True
        self.point.tell_places(self.scheduler)

    def turn(self) -> None:
        for key, _ in self.selector.select(0.1):
            key.data()

    def await_(self, is_so: Callable[[], bool]) -> None:
        for _ in range(_TURNS_MAX):
            if is_so():
                return
            self.turn()
        raise AssertionError("it has not come to that")

    def nodes_at(self, address: str) -> bool:
        """Whether a node is counted whose connection comes from that address."""
        return any(each.node and each.address.endswith(address) for each in self.point._visitors)

    def connect(self, stack: contextlib.ExitStack, source: str = "127.0.0.1") -> socket.socket:
        place = ("127.0.0.1", self.point.port)
        connection = socket.create_connection(place, 60, source_address=(source, 0))
        return stack.enter_context(connection)

    def let_in(self, connection: socket.socket, node: handshake.Node) -> handshake.Seal:
        """Lets another node of the job in, over this connection."""
        seals: list[handshake.Seal] = []
        failure: list[Exception] = []

        def introduce() -> None:
            try:
                port = self.point.port
                seals.append(handshake._introduce(connection, port, "job", _SECRET, None, node)[1])
            except Exception as error:
                failure.append(error)

        thread = threading.Thread(target=introduce)
        thread.start()
        own_port = connection.getsockname()[1]
        ports: list[int] = []
        while not failure and own_port not in ports:
            self.turn()
            ports = [each.lines.connection.getpeername()[1] for each in self.point._nodes]
        thread.join()
        if failure:
            raise failure[0]
        return seals[0]

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
        self.first.let_in(self.first.connect(self.stack, "127.0.0.2"), _NODE)
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

    def test_many_nodes_make_no_long_line(self) -> None:
        first = _First(size=50)
        self.addCleanup(first.close)
        for rank in range(1, 11):
            first.let_in(first.connect(self.stack), handshake.Node(rank, 1, f"h{rank}"))
        names = ", ".join(f"h{rank}" for rank in range(1, 8))
        self.assertEqual(
            first.point.waiting(),
            f"waiting for other nodes: 11 of 50 ranks are here (on first, {names} and 3 more)",
        )

    def test_a_node_that_comes_again_is_counted_once(self) -> None:
        first = _First(size=3)
        self.addCleanup(first.close)
        for _ in range(2):
            first.let_in(first.connect(self.stack), _NODE)
        first.turn()
        self.assertEqual((first.point._count(), first.is_complete), (2, False))

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
        greeting = b'{"version": 2, "port": PORT, "nonce": "%s", "proof": %s}\n'
        nonce = b"a" * 32
        for line, said in (
            (_NESTED, "not a line of this protocol"),
            (b"5\n", "not a line of this protocol"),
            (b"x" * 20000, "answers no line"),
            (greeting % (nonce, b'"\\u00e4"'), "another secret"),
            (greeting % (nonce, b'"\\ud800"'), "another secret"),
            (greeting % (nonce, b"1e999"), "another secret"),
            (greeting % (b"1", b'""'), "no nonce"),
            (greeting.replace(b"PORT", b"[]") % (nonce, b"[]"), "has dialled port"),
            (b'{"version": 2, "port": PORT}\n', "nonce"),
            (b'{"version": [], "port": PORT}\n', "install one release of Talweg"),
            (b"{}\n", "install one release of Talweg"),
        ):
            with self.subTest(line[:60]):
                self.assertIn(said, self._said_of(_saying(line)))

    def test_what_it_says_steers_no_terminal(self) -> None:
        line = json.dumps({"version": 2, "refused": "a\x1b]0;b\n" + "c" * 1000}).encode() + b"\n"
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


# What a relay makes of a line on its way: the lines that it sends on. It gets the number of the line
# in its direction; True: it goes to the node.
_Edit = Callable[[bool, int, bytes], list[bytes]]


class _Relay:
    """A process that listens where nodes look for the first one, and hands on what both say.

    Its connections to the first node come from an address of their own.
    """

    SOURCE = "127.0.0.3"

    def __init__(self, host: str, edit: _Edit) -> None:
        self._listener = socket.create_server((host, 0))
        self.address: list[Any] = list(self._listener.getsockname())
        self._edit = edit
        self._target = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.calls = 0

    def start(self, target: int) -> None:
        self._target = target
        self._begin(self._serve)

    def _begin(self, work: Callable[..., None], *of: object) -> None:
        self._threads.append(threading.Thread(target=work, args=of))
        self._threads[-1].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                called, _ = self._listener.accept()
                self._sockets.append(called)
                self.calls += 1
                place = ("127.0.0.1", self._target)
                onward = socket.create_connection(place, source_address=(self.SOURCE, 0))
                self._sockets.append(onward)
                self._begin(self._pump, called, onward, False)
                self._begin(self._pump, onward, called, True)

    def _pump(self, source: socket.socket, target: socket.socket, is_to_node: bool) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as lines:
            for number, line in enumerate(lines):
                for each in self._edit(is_to_node, number, line):
                    target.sendall(each)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[:1]:  # No thread begins after it.
            thread.join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in [self._listener, *self._sockets]:
            each.close()


def _faithful(is_to_node: bool, number: int, line: bytes) -> list[bytes]:
    return [line]


# Runs a keeper in this process. It reads its plan from stdin.
_KEEPER = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
from _node import keeper, places
plan = keeper.Plan(**json.loads(sys.stdin.buffer.readline()))
keeper.Keeper(plan, places.Claim(pathlib.Path(plan.directory), 60)).run()
"""
# Stands for the tool: writes down its command line, and is ready.
_TOOL = """#!/bin/sh
exec {python} -I -S -c '
import os, signal, sys
with open("{record}", "a") as record:
    record.write(" ".join(sys.argv[1:]) + "\\n")
ready = next(each for each in sys.argv if each.startswith("--ready_fd="))
os.write(int(ready[11:]), b"{{\\"addresses\\": {{}}}}")
os.close(int(ready[11:]))
signal.pause()
' "$@"
"""


class RelayTest(unittest.TestCase):
    """A real keeper looks for the first node, and finds a relay first."""

    def setUp(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="talweg.", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.record = self.directory / "record"
        self.own_scheduler = self._scheduler()
        self.relays_scheduler = self._scheduler()

    def _scheduler(self) -> str:
        listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def _on_another_port(self, edit: _Edit) -> tuple[_Relay, _First]:
        """The relay has the first of the ports, so the first node has taken the second one."""
        relay = _Relay("127.0.0.1", edit)
        first = _First(ports=[relay.address[1], 0])
        self._begin(relay, first)
        self.assertNotEqual(first.point.port, relay.address[1])
        return relay, first

    def _on_the_path(self, edit: _Edit, size: int = 2) -> tuple[_Relay, _First]:
        """The relay has the same port at another address, so both sides take the handshake."""
        while True:
            relay = _Relay("127.0.0.2", edit)
            try:
                first = _First(size, [relay.address[1]], "127.0.0.1")
                break
            except OSError:  # Another process has that port there.
                relay.close()
        self._begin(relay, first)
        return relay, first

    def _begin(self, relay: _Relay, first: _First) -> None:
        first.scheduler = self.own_scheduler
        self.stack.callback(first.close)
        relay.start(first.point.port)
        self.stack.callback(relay.close)

    def _start_keeper(self, *addresses: list[Any]) -> subprocess.Popen[bytes]:
        tool = self.directory / "tool"
        tool.write_text(_TOOL.format(python=sys.executable, record=self.record))
        tool.chmod(0o755)
        plan = {
            "tool": str(tool),
            "directory": str(self.directory / "jobs" / "job"),
            "job": "job",
            "name": "not-yet",
            "rank": 1,
            "size": 3,
            "local_size": 1,
            "host": "second",
            "meets": True,
            "secret": _SECRET,
            "addresses": addresses,
        }
        own = Path(talweg.__file__ or "").parent
        with (self.directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, str(own)],
                stdin=subprocess.PIPE,
                stderr=log,
            )
        self.stack.callback(self._end_keeper, process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(plan).encode() + b"\n")
        process.stdin.flush()
        return process

    def _end_keeper(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)  # Its daemons die with it.
        process.communicate()

    def _lines(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    def _require_own_scheduler(self, first: _First) -> None:
        """Checks that the keeper's daemons are started, and with the first node's scheduler."""
        first.await_(lambda: len(self._lines()) >= 2)
        lines = self._lines()
        self.assertEqual([line.split()[0] for line in lines], ["aggregator", "agent"])
        for line in lines:
            self.assertIn(f"--scheduler={self.own_scheduler} ", line)
            self.assertNotIn(self.relays_scheduler, line)

    def _check_another_port(self, edit: _Edit) -> None:
        relay, first = self._on_another_port(edit)
        self._start_keeper(relay.address, ["127.0.0.1", first.point.port])
        first.await_(lambda: first.is_complete)
        self.assertGreater(relay.calls, 0)
        self.assertFalse(first.nodes_at(_Relay.SOURCE))
        self._require_own_scheduler(first)

    def _check_on_the_path(self, edit: _Edit) -> None:
        """The node is counted over the relay's connection, then over one of its own."""
        relay, first = self._on_the_path(edit, size=3)
        self._start_keeper(relay.address, ["127.0.0.1", first.point.port])
        first.await_(lambda: first.nodes_at(_Relay.SOURCE))
        texts = map(str, itertools.count())

        def comes_again() -> bool:
            first.point.tell_all({"waiting": next(texts)})
            return first.nodes_at("127.0.0.1")

        first.await_(comes_again)
        self.assertFalse(first.nodes_at(_Relay.SOURCE))
        self.assertEqual(self._lines(), [])
        third = handshake.Node(2, 1, "third")
        first.let_in(first.connect(self.stack, "127.0.0.4"), third)
        self.assertTrue(first.is_complete)
        self._require_own_scheduler(first)

    def _evil(self) -> bytes:
        """A message that gives the node the relay's scheduler."""
        told = {"node_rank": 1, "nodes": 3, "scheduler": self.relays_scheduler, "name": "evil"}
        return json.dumps(told).encode()

    def test_a_faithful_relay_on_another_port_is_passed_over(self) -> None:
        self._check_another_port(_faithful)

    def test_a_relay_that_tells_each_side_its_own_port_is_passed_over(self) -> None:
        ports: dict[bool, int] = {}

        def edit(is_to_node: bool, number: int, line: bytes) -> list[bytes]:
            message = json.loads(line) if number == 0 else {}
            if "port" in message:
                ports[is_to_node] = message["port"]
                message["port"] = ports[False] if is_to_node else first.point.port
                line = json.dumps(message).encode() + b"\n"
            return [line]

        relay, first = self._on_another_port(edit)
        self._start_keeper(relay.address, ["127.0.0.1", first.point.port])
        first.await_(lambda: first.is_complete)
        self.assertEqual(ports, {False: relay.address[1], True: first.point.port})
        self.assertFalse(first.nodes_at(_Relay.SOURCE))
        self._require_own_scheduler(first)

    def test_a_faithful_relay_on_the_path_changes_nothing(self) -> None:
        """Nobody can tell it from a forwarder that the user has set up. It knows no key."""
        relay, first = self._on_the_path(_faithful)
        self._start_keeper(relay.address)
        first.await_(lambda: first.is_complete)
        self._require_own_scheduler(first)

    def test_a_relay_adds_a_line(self) -> None:
        evil = self._evil() + b"\n"
        self._check_on_the_path(
            lambda to, number, line: [evil, line] if to and number == 1 else [line]
        )

    def test_a_relay_adds_a_line_in_the_form_of_a_sealed_one(self) -> None:
        evil = b"0" * 64 + b" " + self._evil() + b"\n"
        self._check_on_the_path(
            lambda to, number, line: [evil, line] if to and number == 1 else [line]
        )

    def test_a_relay_alters_a_line(self) -> None:
        def alter(is_to_node: bool, number: int, line: bytes) -> list[bytes]:
            if is_to_node and number == 1:
                return [line.partition(b"{")[0] + self._evil() + b"\n"]
            return [line]

        self._check_on_the_path(alter)

    def test_a_relay_leaves_out_a_line(self) -> None:
        self._check_on_the_path(lambda to, number, line: [] if to and number == 1 else [line])

    def test_a_relay_repeats_a_line(self) -> None:
        self._check_on_the_path(lambda to, number, line: [line] * (1 + (to and number == 1)))

    def test_a_relay_sends_two_lines_in_the_other_order(self) -> None:
        kept: list[bytes] = []

        def swap(is_to_node: bool, number: int, line: bytes) -> list[bytes]:
            if is_to_node and number == 1:
                kept.append(line)
                return []
            return [line, *kept] if is_to_node and number == 2 else [line]

        self._check_on_the_path(swap)

    def test_a_relay_says_goodbye_for_a_node(self) -> None:
        self._check_on_the_path(
            lambda to, number, line: (
                [line, b'{"left": true}\n'] if number == 1 and not to else [line]
            )
        )

    def test_a_relay_changes_what_a_node_says_of_itself(self) -> None:
        def change(is_to_node: bool, number: int, line: bytes) -> list[bytes]:
            if not is_to_node and number == 1:
                line = line.replace(b'"local_size": 1', b'"local_size": 2')
            return [line]

        relay, first = self._on_the_path(change)
        self._start_keeper(relay.address, ["127.0.0.1", first.point.port])
        first.await_(lambda: first.is_complete)
        self.assertFalse(first.nodes_at(_Relay.SOURCE))
        self._require_own_scheduler(first)

    def test_a_relay_of_another_user_of_this_host(self) -> None:
        relay, first = self._on_the_path(_faithful)
        turns = iter(range(_REFUSALS_ENOUGH))
        said: dict[str, str] = {}

        def look() -> None:
            handshake.reach(
                lambda: ([("127.0.0.2", relay.address[1])], _SECRET),
                "job",
                None,
                _NODE,
                said,
                lambda: next(turns, None) is not None,
            )

        with mock.patch.object(handshake.socket_owners, "stranger_at", lambda _: "user 7"):
            thread = threading.Thread(target=look)
            thread.start()
            while thread.is_alive():
                first.turn()
        self.assertIn("on this host, and user 7 has it", "".join(said.values()))
        self.assertFalse(first.point._nodes)

    def test_a_scheduler_that_another_user_may_have(self) -> None:
        """The first node tells an address of the node's own host, where nobody listens."""
        first = _First()
        self.stack.callback(first.close)
        with socket.create_server(("127.0.0.1", 0)) as gone:
            first.scheduler = f"127.0.0.1:{gone.getsockname()[1]}"
        process = self._start_keeper(["127.0.0.1", first.point.port])
        first.await_(lambda: first.is_complete)
        process.wait(_DEADLINE_S)
        self.assertEqual(self._lines(), [])

    def test_the_first_node_ends_without_a_word(self) -> None:
        first = _First(size=3)
        process = self._start_keeper(["127.0.0.1", first.point.port])
        first.await_(lambda: bool(first.point._nodes))
        first.close()
        process.wait(_DEADLINE_S)
        self.assertEqual(self._lines(), [])


if __name__ == "__main__":
    unittest.main()
