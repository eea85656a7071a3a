# SPDX-License-Identifier: Apache-2.0
"""A node's way to the first node of its job, where it is told its number and the scheduler."""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import sys
import threading
from typing import Any

from . import handshake, socket_owners
from .meeting_point import Lines, plain_host


class Group:
    """Another node's side of the meeting.

        looking --found--> waiting --told its number--> told
           ^                  |
           +--a false line----+

    A thread of its own looks for the first node, and writes a byte to `wake` when it has found it.
    All else belongs to the keeper's thread.
    """

    def __init__(self, plan: Any, munge: handshake.Munge | None, wake: socket.socket) -> None:
        self._plan = plan
        self._munge = munge
        self._wake = wake
        self._is_wanted = True
        self._said: dict[str, str] = {}
        self._failures: collections.Counter[tuple[str, int]] = collections.Counter()
        self._secret_to_try: str = plan.secret
        self._found: handshake.Found | None = None
        self._lines: Lines | None = None
        self.has_ended = False  # The connection has ended, or is not listened to any more.
        self.is_refused = False  # The reason is a false line, or the first node's refusal.
        self.address = ""
        self.told = ""
        self._start_to_look()
        if munge is None:
            threading.Thread(target=self._hear, daemon=True).start()

    # ----- The threads -----

    def _start_to_look(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def _targets(self) -> tuple[list[tuple[str, int]], str]:
        """Returns the addresses to try. Those whose connections have ended come last."""
        addresses = [(host, port) for host, port in self._plan.addresses]
        return sorted(addresses, key=lambda each: self._failures[each]), self._secret_to_try

    def _look(self) -> None:
        node = handshake.Node(self._plan.rank, self._plan.local_size, self._plan.host)
        found = handshake.reach(
            self._targets,
            self._plan.job,
            self._munge,
            node,
            self._said,
            lambda: self._is_wanted,
        )
        if found is None:
            return
        self._found = found
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _hear(self) -> None:
        """Reads where the first node is now from stdin, where the rank that started this process
        tells it.
        """
        for line in sys.stdin.buffer:
            told = json.loads(line)
            self._secret_to_try, self._plan.addresses = told["secret"], told["addresses"]

    # ----- The keeper's thread -----

    @property
    def secret(self) -> str:
        """The job's secret, once the first node is found."""
        return self._found.secret if self._found is not None else ""

    @property
    def connection(self) -> socket.socket | None:
        return self._lines.connection if self._lines is not None else None

    def take_found(self) -> socket.socket | None:
        """Returns the connection once it is found, and only once; else None."""
        if self._found is None or self._lines is not None:
            return None
        connection = self._found.connection
        connection.setblocking(False)
        self.address = plain_host(connection.getsockname()[0])
        self._lines = Lines(connection, self._found.seal)
        return connection

    def waiting(self) -> str:
        if self.told:
            return self.told
        text = "; ".join(f"{place}: {said}" for place, said in self._said.items())
        return "waiting for the first node" + (f" ({text})" if text else "")

    def read(self) -> list[dict[str, Any]]:
        """Returns what the first node has said. Sets `has_ended` when no more will come."""
        assert self._found is not None and self._lines is not None
        messages: list[dict[str, Any]] = []
        try:
            lines = self._lines.read()
            for line in lines or []:
                messages.append(self._found.seal.open(line))
                if "refused" in messages[-1]:
                    raise handshake.Refused(handshake.shown(str(messages[-1]["refused"])))
            self.has_ended |= lines is None or any("over" in each for each in messages)
        except handshake.Refused as error:
            host, port = self._found.address
            self._said[f"{host}:{port}"] = str(error)
            self.has_ended = self.is_refused = True
        return messages

    def look_again(self) -> None:
        """Looks for the first node again. The caller does not listen to the connection any more."""
        assert self._found is not None
        self._failures[self._found.address] += 1
        self._found.connection.close()
        self._found = self._lines = None
        self.has_ended = self.is_refused = False
        self.told = ""
        self._start_to_look()

    def leave(self) -> None:
        self._is_wanted = False
        if self._lines is not None:
            self._lines.tell({"left": True})

    def is_over(self) -> bool:
        return self.has_ended or self._lines is None

    def close(self) -> None:
        if self._found is not None:
            self._found.connection.close()


def refusal_of(scheduler: str) -> str:
    """Returns why this node shows its secret to no scheduler at this address; empty if it does."""
    stranger = socket_owners.stranger_listens(scheduler)
    if stranger is None:
        return ""
    return (
        f"the first node has told this one that the scheduler is at {scheduler}, which is an address "
        f"of this host, and {stranger} listens there: let the nodes meet at an address that only the "
        "first node's host has (TALWEG_INTERFACE names its network)"
    )
