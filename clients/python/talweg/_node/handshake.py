# SPDX-License-Identifier: Apache-2.0
"""Lets a node's keeper and the first node's keeper show each other that they are of one job.

    node:   {"version", "job", "port", "nonce"[, "credential"]}
    first:  {"version", "port", "nonce", "proof"[, "secret"]}    or {"version", "refused"}
    node:   sealed {"rank", "local_size", "host"}
    both:   sealed lines

docs/launching.md ("What the nodes say") has the bytes and the failures. All keys are made from the
job's secret, both nonces and the port: the node takes the port that it has dialled, and the first
node the one that it listens on. So a process that hands the lines on from another port has no proof
that the node takes, and no key. If the launcher hands the nodes no secret, they use munge: the
node's credential says who its user is, and the answer brings the secret in a credential that only
this user can open. Both credentials name the connection that they are made for.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import socket_owners

# The version of what nodes say to each other. Nodes of different versions refuse each other.
VERSION = 2
_PROTOCOL = f"talweg meeting {VERSION}"
_NONCE = re.compile("[0-9a-f]{32}")
_MAC_DIGITS = 64
LINE_BYTES_MAX = 16384
_CONNECT_S = 2.0
_ASK_S = 0.1  # The pause between two tries.
_MUNGE_S = 20.0  # How long munge's tools may take.
# How long the other side may take to answer a line.
_ANSWER_S = 20.0
_SHOWN_MAX = 200


class Refused(Exception):
    """The other side is not of this job."""


def read_message(line: bytes) -> dict[str, Any]:
    """Parses a line, which anybody may have written. Raises Refused if it is no JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: brackets are nested too deep.
        message = None
    if not isinstance(message, dict):
        raise Refused("what it sends is not a line of this protocol")
    return message


def shown(text: str) -> str:
    """Returns a text of the other side in a form that is safe for a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN_MAX])


def job_digest(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()[:32]


def _check_versions(node: object, first: object) -> None:
    if node != first:
        raise Refused(
            f"this node's Talweg says version {shown(str(node))[:20]} where nodes meet, the first "
            f"node's says version {shown(str(first))[:20]}: install one release of Talweg on all nodes"
        )


def _checked_nonce(said: object) -> str:
    """Returns a nonce of the other side. With lines in it, it could pass for more than a nonce."""
    if not isinstance(said, str) or _NONCE.fullmatch(said) is None:
        raise Refused("what it sends has no nonce")
    return said


class Seal:
    """The sealed lines of one side of a connection. Each has a MAC with the connection's key for
    its direction, and with its number there.
    """

    def __init__(self, own_key: bytes, others_key: bytes) -> None:
        self._own_key = own_key
        self._others_key = others_key
        self._sent = 0
        self._taken = 0

    @staticmethod
    def _mac(key: bytes, number: int, text: bytes) -> bytes:
        return hmac.digest(key, number.to_bytes(8, "big") + text, "sha256").hex().encode()

    def next_line(self, message: Mapping[str, Any]) -> bytes:
        """Returns the line to send next. The caller tells by count_sent() that it has sent it."""
        text = json.dumps(message).encode()
        return self._mac(self._own_key, self._sent, text) + b" " + text + b"\n"

    def count_sent(self) -> None:
        self._sent += 1

    def open(self, line: bytes) -> dict[str, Any]:
        """Returns the message of the line that came next. Raises Refused if the other side has not
        sealed it, or has not sent it next.
        """
        text = line[_MAC_DIGITS + 1 :]
        wanted = self._mac(self._others_key, self._taken, text) + b" "
        if not hmac.compare_digest(line[: _MAC_DIGITS + 1], wanted):
            raise Refused("somebody has changed what the nodes say to each other")
        self._taken += 1
        return read_message(text)


class _Session:
    """The facts of one connection, and the keys that are made from them."""

    def __init__(self, job: str, port: int, node_nonce: str, first_nonce: str) -> None:
        self._facts = [job, str(port), node_nonce, first_nonce]
        self._root = b""

    def set_secret(self, secret: str) -> None:
        transcript = "\n".join([_PROTOCOL, *self._facts]).encode()
        salt = hashlib.sha256(transcript).digest()
        self._root = hmac.digest(salt, secret.encode(), "sha256")

    def _key(self, purpose: str) -> bytes:
        return hmac.digest(self._root, purpose.encode() + b"\1", "sha256")

    def proof(self) -> str:
        return self._key("proof of the first node").hex()

    def seal_of_node(self) -> Seal:
        return Seal(self._key("node to first node"), self._key("first node to node"))

    def seal_of_first(self) -> Seal:
        return Seal(self._key("first node to node"), self._key("node to first node"))

    def credential_text(self, secret: str) -> str:
        """Returns the text by which munge carries the secret."""
        return "\n".join([f"{_PROTOCOL} first", *self._facts, secret])


def _node_text(job: str, port: int, nonce: str) -> str:
    """Returns the text by which munge shows who the node's user is."""
    return "\n".join([f"{_PROTOCOL} node", job, str(port), nonce])


class Munge:
    """Credentials of the cluster's munge daemon, by its tools. Raises OSError if they fail."""

    def __init__(self, socket_path: str) -> None:
        self._options = [f"--socket={socket_path}"] if socket_path else []

    def _run(self, line: Sequence[str], text: str) -> str:
        try:
            done = subprocess.run(
                [*line, *self._options],
                input=text,
                capture_output=True,
                text=True,
                timeout=_MUNGE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{line[0]} has not answered within {_MUNGE_S:g} s") from None
        if done.returncode != 0:
            raise OSError(f"{line[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def seal(self, text: str) -> str:
        """Returns a credential that only this user can open, on any machine of the cluster."""
        return self._run(["munge", f"--restrict-uid={os.getuid()}"], text).strip()

    def open(self, credential: str) -> str:
        """Returns the text that this user has sealed. Raises Refused if another user sealed it."""
        head, _, text = self._run(["unmunge", "--numeric"], credential).partition("\n\n")
        fields = dict(line.split(":", 1) for line in head.splitlines() if ":" in line)
        if fields.get("UID", "").strip() != str(os.getuid()):
            raise Refused(f"the credential is user {fields.get('UID', '').strip()}'s")
        return text


@dataclass
class Node:
    """The facts that a node tells about itself."""

    rank: int  # The number that the launcher gave the node's first rank.
    local_size: int
    host: str


class Answerer:
    """The first node's side, for one connection: lines go in, answers come out."""

    def __init__(self, job: str, secret: str, munge: Munge | None, port: int) -> None:
        """`port` is the one that the first node listens on."""
        self._job = job_digest(job)
        self._secret = secret
        self._munge = munge
        self._port = port
        self._seal: Seal | None = None
        # Both are set once the node has shown that it is of the job.
        self.seal: Seal | None = None
        self.node: Node | None = None

    def answer(self, line: bytes) -> dict[str, Any] | None:
        """Returns the answer to a line, or None if nothing is to be said.

        Raises Refused, or another error, if the line is wrong: the caller ends the connection.
        """
        if self._seal is None:
            return self._greet(read_message(line))
        facts = self._seal.open(line)
        self.node = Node(
            int(facts["rank"]), int(facts["local_size"]), shown(str(facts["host"]))[:64]
        )
        self.seal = self._seal
        return None

    def _greet(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        _check_versions(hello.get("version", 1), VERSION)
        if hello["job"] != self._job:
            raise Refused("this is another job's port")
        _check_ports(hello["port"], self._port)
        nonce = _checked_nonce(hello["nonce"])
        reply: dict[str, Any] = {"version": VERSION, "port": self._port}
        reply["nonce"] = secrets.token_hex(16)
        session = _Session(self._job, self._port, nonce, reply["nonce"])
        session.set_secret(self._secret)
        if self._munge is not None:
            wanted = _node_text(self._job, self._port, nonce)
            if self._munge.open(str(hello["credential"])) != wanted:
                raise Refused("the credential was made for another connection")
            reply["secret"] = self._munge.seal(session.credential_text(self._secret))
        reply["proof"] = session.proof()
        self._seal = session.seal_of_first()
        return reply


def _check_ports(dialled: object, listened: object) -> None:
    if dialled != listened:
        raise Refused(
            f"this node has dialled port {shown(str(dialled))[:20]}, and the first node listens on "
            f"port {shown(str(listened))[:20]}: another process is between them"
        )


def _read_line(connection: socket.socket) -> bytes:
    """Returns a line. Raises OSError if it is not whole in time: bytes may come one by one."""
    end = time.monotonic() + _ANSWER_S
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(end - time.monotonic(), 0.001))
        part = connection.recv(LINE_BYTES_MAX)
        line += part
        if not part or len(line) > LINE_BYTES_MAX:
            raise Refused("the process at this port answers no line, or too long a one")
    return line


def _exchange(connection: socket.socket, message: Mapping[str, Any]) -> dict[str, Any]:
    connection.sendall(json.dumps(message).encode() + b"\n")
    answer = read_message(_read_line(connection))
    _check_versions(VERSION, answer.get("version", 1))
    if "refused" in answer:
        raise Refused(shown(str(answer["refused"])))
    return answer


def _introduce(
    connection: socket.socket, port: int, job: str, secret: str, munge: Munge | None, node: Node
) -> tuple[str, Seal]:
    """Returns the job's secret and the seal, once the other side has shown that it knows the secret,
    too. `port` is the one that was dialled.
    """
    nonce, digest = secrets.token_hex(16), job_digest(job)
    hello = {"version": VERSION, "job": digest, "port": port, "nonce": nonce}
    if munge is not None:
        hello["credential"] = munge.seal(_node_text(digest, port, nonce))
    answer = _exchange(connection, hello)
    _check_ports(port, answer["port"])
    session = _Session(digest, port, nonce, _checked_nonce(answer["nonce"]))
    if munge is not None:
        told, _, secret = munge.open(str(answer["secret"])).rpartition("\n")
        if f"{told}\n" != session.credential_text(""):
            raise Refused("the secret was sealed for another connection")
    session.set_secret(secret)
    # Compared as bytes: compare_digest() refuses a str with characters beyond ASCII.
    proof = str(answer["proof"]).encode(errors="replace")
    if not hmac.compare_digest(proof, session.proof().encode()):
        raise Refused("the process at this port has another secret, or hands on another's lines")
    # Now the other side has accepted the connection, so the kernel knows whose it is.
    stranger = socket_owners.stranger_at(connection)
    if stranger is not None:
        raise Refused(f"the process at this port is on this host, and {stranger} has it")
    seal = session.seal_of_node()
    connection.sendall(seal.next_line(node.__dict__))
    seal.count_sent()
    return secret, seal


@dataclass
class Found:
    """A connection to the first node's keeper."""

    connection: socket.socket
    address: tuple[str, int]  # The one that was dialled.
    secret: str
    seal: Seal


def reach(
    targets: Callable[[], tuple[Sequence[tuple[str, int]], str]],
    job: str,
    munge: Munge | None,
    node: Node,
    said: dict[str, str],
    is_wanted: Callable[[], bool],
) -> Found | None:
    """Returns a connection to the first node's keeper. Tries the addresses in turn; returns None if
    `is_wanted` returns False before one has answered rightly.

    `targets` returns the addresses and the secret to try; it is called again for each turn. `said`
    gets the newest error of each address.
    """
    while is_wanted():
        addresses, secret = targets()
        for host, port in addresses:
            place = f"{host}:{port}"
            try:
                connection = socket.create_connection((host, port), _CONNECT_S)
            except OSError as error:
                said[place] = error.strerror or str(error)
                continue
            try:
                connection.settimeout(_MUNGE_S)
                told, seal = _introduce(connection, port, job, secret, munge, node)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return Found(connection, (host, port), told, seal)
            except (OSError, Refused, ValueError, KeyError) as error:
                said[place] = str(error)
                with contextlib.suppress(OSError):
                    connection.close()
        time.sleep(_ASK_S)
    return None
