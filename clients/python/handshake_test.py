# SPDX-License-Identifier: Apache-2.0
"""What the keepers of two nodes prove to each other, and what a third process makes of it."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import unittest
from collections.abc import Callable, Mapping
from typing import Any

from talweg._node import handshake

_SECRET = "s" * 64
_NODE = handshake.Node(1, 2, "h")
_PORT = 7450
_ANSWER_S = 60

# Changes a line on its way, in place.
_Change = Callable[[dict[str, Any]], None]


def _unchanged(_: dict[str, Any]) -> None:
    pass


class _Munge:
    """A munge of one user. Its credentials are the texts themselves, sealed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def seal(self, text: str) -> str:
        self.texts.append(text)
        return f"MUNGE:{len(self.texts) - 1}"

    def open(self, credential: str) -> str:
        return self.texts[int(credential.removeprefix("MUNGE:"))]


class _Meeting:
    """A node that calls, a first node that answers, and a process between them."""

    def __init__(
        self,
        dialled: int = _PORT,
        secrets: tuple[str, str] = (_SECRET, _SECRET),
        munge: _Munge | None = None,
        hello: _Change = _unchanged,
        reply: _Change = _unchanged,
    ) -> None:
        self.answerer = handshake.Answerer("job", secrets[1], munge, _PORT)  # type: ignore[arg-type]
        self.node_error = self.first_error = ""
        self.secret = ""
        self.seal: handshake.Seal | None = None
        own, its = socket.socketpair(socket.AF_UNIX)
        with own, its:
            its.settimeout(_ANSWER_S)
            thread = threading.Thread(target=self._answer, args=(its, hello, reply))
            thread.start()
            try:
                self.secret, self.seal = handshake._introduce(
                    _Named(own),  # type: ignore[arg-type]
                    dialled,
                    "job",
                    secrets[0],
                    munge,  # type: ignore[arg-type]
                    _NODE,
                )
            except (handshake.Refused, KeyError) as error:
                self.node_error = str(error)
                own.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _answer(self, its: socket.socket, hello: _Change, reply: _Change) -> None:
        with its.makefile("rwb") as lines:
            try:
                first = json.loads(lines.readline())
                hello(first)
                said = self.answerer.answer(json.dumps(first).encode())
                assert said is not None
                reply(said)
            except handshake.Refused as error:
                self.first_error = str(error)
                said = {"version": handshake.VERSION, "refused": str(error)}
            lines.write(json.dumps(said).encode() + b"\n")
            lines.flush()
            last = lines.readline()
            if last:
                self.answerer.answer(last[:-1])


class _Named:
    """A socket of the test, with addresses of another host."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", _PORT


class HandshakeTest(unittest.TestCase):
    def _require_met(self, meeting: _Meeting) -> None:
        self.assertEqual((meeting.node_error, meeting.first_error), ("", ""))
        self.assertEqual(meeting.answerer.node, _NODE)
        self.assertEqual(meeting.secret, _SECRET)
        node, first = meeting.seal, meeting.answerer.seal
        assert node is not None and first is not None
        self.assertEqual(node.open(first.next_line({"a": 1})[:-1]), {"a": 1})
        self.assertEqual(first.open(node.next_line({"b": 2})[:-1]), {"b": 2})

    def _require_strangers(self, meeting: _Meeting, node: str, first: str = "") -> None:
        self.assertIn(node, meeting.node_error)
        self.assertIn(first, meeting.first_error)
        self.assertIsNone(meeting.seal)
        self.assertIsNone(meeting.answerer.seal)
        self.assertIsNone(meeting.answerer.node)

    def test_two_nodes_of_a_job_meet(self) -> None:
        self._require_met(_Meeting())
        self._require_met(_Meeting(munge=_Munge(), secrets=("", _SECRET)))

    def test_another_job_is_refused(self) -> None:
        def say_another(line: dict[str, Any]) -> None:
            line["job"] = handshake.job_digest("other")

        self._require_strangers(_Meeting(hello=say_another), "another job's", "another job's")

    def test_another_secret_is_refused(self) -> None:
        self._require_strangers(_Meeting(secrets=("t" * 64, _SECRET)), "another secret")
        answerer = handshake.Answerer("job", _SECRET, None, _PORT)
        hello = {"version": 2, "job": handshake.job_digest("job"), "port": _PORT}
        self.assertIsNotNone(answerer.answer(json.dumps({**hello, "nonce": "a" * 32}).encode()))
        for line in (b"", b"{}", b"0" * 64 + b" {}", json.dumps(_NODE.__dict__).encode()):
            with self.assertRaises(handshake.Refused):
                answerer.answer(line)
        self.assertIsNone(answerer.node)

    def test_nothing_but_a_nonce_is_a_nonce(self) -> None:
        for nonce in ("", "a" * 31, "a" * 32 + "\n", "A" * 32, 5, None, ["a" * 32]):

            def say(line: dict[str, Any], nonce: object = nonce) -> None:
                line["nonce"] = nonce

            self._require_strangers(_Meeting(hello=say), "no nonce", "no nonce")
            self._require_strangers(_Meeting(reply=say), "no nonce")

    def test_lines_handed_on_to_another_port(self) -> None:
        """The third process listens on the port that the node dials."""

        def say_dialled(line: dict[str, Any]) -> None:
            line["port"] = 7449

        def say_listened(line: dict[str, Any]) -> None:
            line["port"] = _PORT

        for sends_secret in (False, True):
            options: dict[str, Any] = {"dialled": 7449}
            if sends_secret:
                options |= {"munge": _Munge(), "secrets": ("", _SECRET)}
            between = "has dialled port 7449, and the first node listens on port 7450"
            self._require_strangers(_Meeting(**options), between, between)
            says_listened = _Meeting(**options, hello=say_listened)
            if sends_secret:
                made = "made for another connection"
                self._require_strangers(says_listened, made, made)
            else:
                self._require_strangers(says_listened, between)
                tells_both = _Meeting(**options, hello=say_listened, reply=say_dialled)
                self._require_strangers(tells_both, "hands on another's lines")

    def test_a_credential_of_another_connection(self) -> None:
        """An earlier line of the same two nodes, and a text of the other side's, come again."""
        for field, side in (("credential", "hello"), ("secret", "reply")):
            for index in (0, 1):
                munge = _Munge()
                _Meeting(munge=munge, secrets=("", _SECRET))

                def replay(line: dict[str, Any], field: str = field, index: int = index) -> None:
                    line[field] = f"MUNGE:{index}"

                changes: dict[str, Any] = {side: replay}
                meeting = _Meeting(munge=munge, secrets=("", _SECRET), **changes)
                self._require_strangers(meeting, "for another connection")

    def test_munges_texts(self) -> None:
        munge = _Munge()
        lines: list[Mapping[str, Any]] = []
        _Meeting(munge=munge, secrets=("", _SECRET), hello=lines.append, reply=lines.append)
        hello, reply = lines
        job = handshake.job_digest("job")
        node = f"talweg meeting 2 node\n{job}\n{_PORT}\n{hello['nonce']}"
        nonces = f"{hello['nonce']}\n{reply['nonce']}"
        first = f"talweg meeting 2 first\n{job}\n{_PORT}\n{nonces}\n{_SECRET}"
        self.assertEqual(munge.texts, [node, first])

    def test_the_bytes_of_proof_and_seal(self) -> None:
        lines: list[Mapping[str, Any]] = []
        meeting = _Meeting(hello=lines.append, reply=lines.append)
        job = hashlib.sha256(b"job").hexdigest()[:32]
        hello, reply = lines
        self.assertEqual(hello.keys(), {"version", "job", "port", "nonce"})
        self.assertEqual((hello["version"], hello["job"], hello["port"]), (2, job, _PORT))
        self.assertEqual(reply.keys(), {"version", "port", "nonce", "proof"})
        facts = f"talweg meeting 2\n{job}\n{_PORT}\n{hello['nonce']}\n{reply['nonce']}"
        salt = hashlib.sha256(facts.encode()).digest()
        root = hmac.new(salt, _SECRET.encode(), "sha256").digest()
        proof = hmac.new(root, b"proof of the first node\1", "sha256").hexdigest()
        self.assertEqual(reply["proof"], proof)
        for purpose, number, seal in (
            (b"first node to node\1", 0, meeting.answerer.seal),
            (b"node to first node\1", 1, meeting.seal),
        ):
            key = hmac.new(root, purpose, "sha256").digest()
            mac = hmac.new(key, bytes(7) + bytes([number]) + b'{"a": 1}', "sha256").hexdigest()
            assert seal is not None
            self.assertEqual(seal.next_line({"a": 1}), f'{mac} {{"a": 1}}\n'.encode())


class SealTest(unittest.TestCase):
    def setUp(self) -> None:
        meeting = _Meeting()
        assert meeting.seal is not None and meeting.answerer.seal is not None
        self.node, self.first = meeting.seal, meeting.answerer.seal
        self.lines = []
        for number in range(3):
            self.lines.append(self.first.next_line({"number": number})[:-1])
            self.first.count_sent()

    def _require_refused(self, line: bytes) -> None:
        with self.assertRaisesRegex(handshake.Refused, "changed what the nodes say"):
            self.node.open(line)

    def test_lines_in_their_order(self) -> None:
        opened = [self.node.open(line)["number"] for line in self.lines]
        self.assertEqual(opened, [0, 1, 2])

    def test_a_line_that_is_missing(self) -> None:
        self.node.open(self.lines[0])
        self._require_refused(self.lines[2])

    def test_a_line_that_comes_twice(self) -> None:
        self.node.open(self.lines[0])
        self._require_refused(self.lines[0])

    def test_a_line_of_another_direction(self) -> None:
        """The first node's second line comes back to it, when it waits for the node's second."""
        with self.assertRaisesRegex(handshake.Refused, "changed what the nodes say"):
            self.first.open(self.lines[1])

    def test_a_line_of_another_connection(self) -> None:
        other = _Meeting().answerer.seal
        assert other is not None
        self._require_refused(other.next_line({"number": 0})[:-1])

    def test_each_byte_counts(self) -> None:
        line = self.lines[0]
        for index in range(len(line)):
            self._require_refused(line[:index] + bytes([line[index] ^ 1]) + line[index + 1 :])
            self._require_refused(line[:index])
        self._require_refused(line + b" ")
        self._require_refused(b'{"number": 0}')
        self.node.open(line)


class VersionsTest(unittest.TestCase):
    """A node and a first node of different releases. Version 1 said no version."""

    remedy = "install one release of Talweg on all nodes"

    def test_an_older_node_is_told(self) -> None:
        for munge in (None, _Munge()):
            answerer = handshake.Answerer("job", _SECRET, munge, _PORT)  # type: ignore[arg-type]
            hello = {"job": handshake.job_digest("job"), "nonce": "a" * 32, "credential": "x"}
            with self.assertRaises(handshake.Refused) as caught:
                answerer.answer(json.dumps(hello).encode())
            self.assertEqual(
                str(caught.exception),
                "this node's Talweg says version 1 where nodes meet, the first node's says version 2: "
                f"{self.remedy}",
            )
            # A node of version 1 shows so many characters.
            self.assertLess(len(str(caught.exception)), 200)

    def _said_of(self, answer: Mapping[str, Any]) -> str:
        def say(line: dict[str, Any]) -> None:
            line.clear()
            line.update(answer)

        meeting = _Meeting(reply=say)
        self.assertIsNone(meeting.seal)
        return meeting.node_error

    def test_an_older_first_node_is_named(self) -> None:
        said = (
            "this node's Talweg says version 2 where nodes meet, the first node's says version 1: "
            f"{self.remedy}"
        )
        self.assertEqual(self._said_of({"nonce": "a" * 32, "proof": "b" * 64}), said)
        # It refuses munge's credential, whose text it does not know.
        refused = {"refused": "the credential was made for another connection"}
        self.assertEqual(self._said_of(refused), said)

    def test_a_newer_first_node_is_named(self) -> None:
        said = self._said_of({"version": 3, "refused": "x"})
        self.assertIn("says version 3: install", said)
        strange = self._said_of({"version": "\x1b]0;" + "9" * 1000})
        self.assertTrue(strange.isprintable() and len(strange) < 250, strange)


if __name__ == "__main__":
    unittest.main()
