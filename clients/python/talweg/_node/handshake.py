# SPDX-License-Identifier: Apache-2.0
"""Lets a node's keeper and the first node's keeper show each other that they are of one job.

    node:   {"job", "nonce"[, "credential"]}
    first:  {"nonce", "proof"[, "secret"]}       or {"refused"}, and the end
    node:   {"proof", "rank", "local_size", "host"}
    first:  {"waiting"} any number of times, then {"node_rank", "nodes", "scheduler", "name"}

Each line is a JSON object, over TCP. Each proof is an HMAC of both nonces with the job's secret. So
a process that listens on a wrong host, or on a port that was another job's, cannot give the proof,
and learns nothing. If the launcher hands the nodes no secret, they use munge: the node's credential
says who its user is, and the answer brings the secret in a credential that only this user can open.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def _proof(secret: str, side: str, nonces: str) -> str:
    return hmac.new(secret.encode(), f"{side} {nonces}".encode(), "sha256").hexdigest()


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

    def __init__(self, job: str, secret: str, munge: Munge | None) -> None:
        self._job = job_digest(job)
        self._secret = secret
        self._munge = munge
        self._nonces = ""
        self.node: Node | None = None  # Set once the node has shown that it is of the job.

    def answer(self, line: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the answer to a line, or None if nothing is to be said.

        Raises Refused, or another error, if the line is wrong: the caller ends the connection.
        """
        if self._nonces:
            if not hmac.compare_digest(
                str(line["proof"]), _proof(self._secret, "node", self._nonces)
            ):
                raise Refused("this node has another secret than the first node")
            self.node = Node(
                int(line["rank"]), int(line["local_size"]), shown(str(line["host"]))[:64]
            )
            return None
        if line["job"] != self._job:
            raise Refused("this is another job's port")
        reply: dict[str, Any] = {"nonce": secrets.token_hex(16)}
        if self._munge is not None:
            if self._munge.open(str(line["credential"])) != line["nonce"]:
                raise Refused("the credential was made for another connection")
            reply["secret"] = self._munge.seal(self._secret)
        self._nonces = f"{line['nonce']} {reply['nonce']}"
        reply["proof"] = _proof(self._secret, "first", self._nonces)
        return reply


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
    if "refused" in answer:
        raise Refused(shown(str(answer["refused"])))
    return answer


def _introduce(
    connection: socket.socket, job: str, secret: str, munge: Munge | None, node: Node
) -> str:
    """Returns the job's secret, once the other side has shown that it knows it, too."""
    nonce = secrets.token_hex(16)
    hello = {"job": job_digest(job), "nonce": nonce}
    if munge is not None:
        hello["credential"] = munge.seal(nonce)
    answer = _exchange(connection, hello)
    if munge is not None:
        secret = munge.open(str(answer["secret"]))
    nonces = f"{nonce} {answer['nonce']}"
    # Compared as bytes: compare_digest() refuses a str with characters beyond ASCII.
    proof = str(answer["proof"]).encode(errors="replace")
    if not hmac.compare_digest(proof, _proof(secret, "first", nonces).encode()):
        raise Refused("the process at this port has another secret")
    last = {"proof": _proof(secret, "node", nonces), **node.__dict__}
    connection.sendall(json.dumps(last).encode() + b"\n")
    return secret


def reach(
    targets: Callable[[], tuple[Sequence[tuple[str, int]], str]],
    job: str,
    munge: Munge | None,
    node: Node,
    said: dict[str, str],
    is_wanted: Callable[[], bool],
) -> tuple[socket.socket, str] | None:
    """Returns a connection to the first node's keeper, and the job's secret. Tries the addresses in
    turn; returns None if `is_wanted` returns False before one has answered rightly.

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
                told = _introduce(connection, job, secret, munge, node)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return connection, told
            except (OSError, Refused, ValueError, KeyError) as error:
                said[place] = str(error)
                with contextlib.suppress(OSError):
                    connection.close()
        time.sleep(_ASK_S)
    return None
