# SPDX-License-Identifier: Apache-2.0
"""The place where the keepers of a job's nodes meet: the first node's side, and the others'."""

from __future__ import annotations

import collections
import contextlib
import json
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import handshake

# How many seconds a connection may take to show that it is of this job, and how many connections
# may be about to. Beyond that the oldest one of the address that has most of them makes room.
_HANDSHAKE_S = 30.0
_STRANGERS_MAX = 64


def plain_host(host: str) -> str:
    """Returns the form of daemons' options: IPv4 without its IPv6 prefix, IPv6 in brackets."""
    host = host[len("::ffff:") :] if host.startswith("::ffff:") else host
    return f"[{host.partition('%')[0]}]" if ":" in host else host


class _Lines:
    """JSON lines over a socket that does not block."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._text = b""

    def read(self) -> list[dict[str, Any]] | None:
        """Returns the lines that have come, without waiting. None: the connection has ended.

        Raises Refused if a line is no message, or too long.
        """
        try:
            part = self.connection.recv(handshake.LINE_BYTES_MAX)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not part:
            return None
        *lines, self._text = (self._text + part).split(b"\n")
        if len(self._text) > handshake.LINE_BYTES_MAX:
            raise handshake.Refused("a line is too long")
        return [handshake.read_message(line) for line in lines]

    def tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(message).encode() + b"\n")


class _Visitor:
    def __init__(
        self, connection: socket.socket, address: str, answerer: handshake.Answerer
    ) -> None:
        self.lines = _Lines(connection)
        self.address = address
        self.answerer = answerer
        self.since = time.monotonic()
        self.has_left = False

    @property
    def node(self) -> handshake.Node | None:
        return self.answerer.node


class MeetingPoint:
    """The first node's side: counts the ranks that nodes bring, and gives each node its number."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        plan: Any,
        munge: handshake.Munge | None,
        on_all_here: Callable[[], None],
        on_node_lost: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._plan = plan
        self._munge = munge
        self._on_all_here = on_all_here
        self._on_node_lost = on_node_lost
        self._visitors: list[_Visitor] = []
        self._are_all_here = False
        # The address by which the first other node has reached this one.
        self.address = "127.0.0.1"
        self._listener = self._bind(plan.ports or [0])
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _bind(self, ports: list[int]) -> socket.socket:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        failure: OSError | None = None
        for port in ports:
            try:
                return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
            except OSError as error:
                failure = error
        raise OSError(
            f"none of the ports {ports}, on which the job's nodes meet, is free: {failure}"
        )

    @property
    def _nodes(self) -> list[_Visitor]:
        return [each for each in self._visitors if each.node is not None]

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:
            return
        if self._are_all_here:
            connection.close()
            return
        self._make_room()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        answerer = handshake.Answerer(self._plan.job, self._plan.secret, self._munge)
        visitor = _Visitor(connection, address[0], answerer)
        self._visitors.append(visitor)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(visitor))

    def _make_room(self) -> None:
        """Drops a stranger if there are too many. So silent connections from one address do not
        keep out nodes at other addresses.
        """
        strangers = [each for each in self._visitors if each.node is None]
        if len(strangers) < _STRANGERS_MAX:
            return
        most, _ = collections.Counter(each.address for each in strangers).most_common(1)[0]
        self._drop(next(each for each in strangers if each.address == most))

    def _drop(self, visitor: _Visitor) -> None:
        self._selector.unregister(visitor.lines.connection)
        visitor.lines.connection.close()
        self._visitors.remove(visitor)

    def drop_silent(self) -> None:
        for visitor in list(self._visitors):
            if visitor.node is None and time.monotonic() - visitor.since > _HANDSHAKE_S:
                self._drop(visitor)

    def _read(self, visitor: _Visitor) -> None:
        if visitor not in self._visitors:  # _make_room() has just dropped it.
            return
        try:
            messages = visitor.lines.read()
            for message in messages or []:
                if visitor.node is not None:
                    visitor.has_left = visitor.has_left or "left" in message
                    continue
                reply = visitor.answerer.answer(message)
                if reply is not None:
                    visitor.lines.tell(reply)
                else:
                    self._on_node(visitor)
        except (
            handshake.Refused,
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            OSError,
        ) as error:
            visitor.lines.tell({"refused": str(error)})
            messages = None
        if messages is not None or visitor not in self._visitors:
            return
        self._drop(visitor)
        if visitor.node is not None and not visitor.has_left and self._are_all_here:
            self._on_node_lost(visitor.node.host)

    def _on_node(self, visitor: _Visitor) -> None:
        if len(self._nodes) == 1:
            self.address = plain_host(visitor.lines.connection.getsockname()[0])
        count = self._count()
        if count > self._plan.size:
            raise handshake.Refused(
                f"the job has {self._plan.size} ranks, and with this node's there are {count}"
            )
        if count == self._plan.size:
            self._are_all_here = True
            self._on_all_here()

    def _count(self) -> int:
        others = sum(each.node.local_size for each in self._nodes if each.node is not None)
        return int(self._plan.local_size + others)

    def waiting(self) -> str:
        hosts = [self._plan.host] + [
            each.node.host for each in self._nodes if each.node is not None
        ]
        return (
            f"waiting for other nodes: {self._count()} of {self._plan.size} ranks are here "
            f"(on {', '.join(hosts)})"
        )

    def tell_all(self, message: dict[str, Any]) -> None:
        for visitor in self._nodes:
            visitor.lines.tell(message)

    def tell_places(self, scheduler: str) -> int:
        """Tells the nodes their numbers, in the order of their first ranks. Returns the number of
        nodes, this one included.
        """

        def first_rank(visitor: _Visitor) -> int:
            assert visitor.node is not None
            return visitor.node.rank

        nodes = sorted(self._nodes, key=first_rank)
        place = {"nodes": len(nodes) + 1, "scheduler": scheduler, "name": self._plan.name}
        for number, visitor in enumerate(nodes, 1):
            visitor.lines.tell({"node_rank": number, **place})
        return len(nodes) + 1

    def have_all_left(self) -> bool:
        return all(each.has_left for each in self._nodes)

    def are_all_gone(self) -> bool:
        return not self._nodes


class Group:
    """Another node's side. A thread of its own looks for the first node."""

    def __init__(self, plan: Any, munge: handshake.Munge | None, wake: socket.socket) -> None:
        self._plan = plan
        self._munge = munge
        self._wake = wake
        self._is_wanted = True
        self._said: dict[str, str] = {}
        self.connection: socket.socket | None = None
        self.secret = plan.secret
        self.address = ""
        self.told = ""
        self._lines: _Lines | None = None
        self._is_over = False
        self._is_taken = False
        threading.Thread(target=self._look, daemon=True).start()
        if munge is None:
            threading.Thread(target=self._hear, daemon=True).start()

    def _look(self) -> None:
        node = handshake.Node(self._plan.rank, self._plan.local_size, self._plan.host)
        found = handshake.reach(
            lambda: ([(host, port) for host, port in self._plan.addresses], self.secret),
            self._plan.job,
            self._munge,
            node,
            self._said,
            lambda: self._is_wanted,
        )
        if found is None:
            return
        connection, self.secret = found
        connection.setblocking(False)
        self.address = plain_host(connection.getsockname()[0])
        self._lines = _Lines(connection)
        self.connection = connection
        self._wake.send(b"\0")

    def _hear(self) -> None:
        """Reads where the first node is now from stdin, where the rank that started this process
        tells it.
        """
        for line in sys.stdin.buffer:
            told = json.loads(line)
            self.secret, self._plan.addresses = told["secret"], told["addresses"]

    def take_found(self) -> socket.socket | None:
        """Returns the connection once it is found, and only once; else None."""
        if self._is_taken or self.connection is None:
            return None
        self._is_taken = True
        return self.connection

    def waiting(self) -> str:
        if self.told:
            return self.told
        text = "; ".join(f"{place}: {said}" for place, said in self._said.items())
        return "waiting for the first node" + (f" ({text})" if text else "")

    def read(self) -> list[dict[str, Any]] | None:
        assert self._lines is not None
        try:
            messages = self._lines.read()
        except handshake.Refused:
            messages = None
        if messages is None or any("over" in each for each in messages):
            self._is_over = True
        return messages

    def leave(self) -> None:
        self._is_wanted = False
        if self._lines is not None:
            self._lines.tell({"left": True})

    def is_over(self) -> bool:
        return self._is_over or self.connection is None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
