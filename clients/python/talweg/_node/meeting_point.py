# SPDX-License-Identifier: Apache-2.0
"""The place where the keepers of a job's nodes meet: the first node's side."""

from __future__ import annotations

import collections
import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from . import handshake
from .stderr import say

# How many seconds a connection may take to show that it is of this job, and how many connections
# may be about to. Beyond that the oldest one of the address that has most of them makes room.
_HANDSHAKE_S = 30.0
_STRANGERS_MAX = 64
_NAMED_MAX = 8  # At most so many hosts are named. With all of them a line could be too long.


def plain_host(host: str) -> str:
    """Returns the form of daemons' options: IPv4 without its IPv6 prefix, IPv6 in brackets."""
    host = host[len("::ffff:") :] if host.startswith("::ffff:") else host
    return f"[{host.partition('%')[0]}]" if ":" in host else host


class Lines:
    """Lines over a socket that does not block. What it says is sealed once it has a seal."""

    def __init__(self, connection: socket.socket, seal: handshake.Seal | None = None) -> None:
        self.connection = connection
        self.seal = seal
        self._text = b""

    def read(self) -> list[bytes] | None:
        """Returns the lines that have come, without waiting. None: the connection has ended.

        Raises Refused if a line is too long.
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
        return lines

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a message, or nothing of it if the other side does not read. If only a part can be
        sent, the connection ends: nothing would fit after that.
        """
        if self.seal is None:
            line = json.dumps(message).encode() + b"\n"
        else:
            line = self.seal.next_line(message)
        with contextlib.suppress(OSError):
            if self.connection.send(line) < len(line):
                self.connection.shutdown(socket.SHUT_RDWR)
            elif self.seal is not None:
                self.seal.count_sent()


class _Visitor:
    def __init__(
        self, connection: socket.socket, address: str, answerer: handshake.Answerer
    ) -> None:
        self.lines = Lines(connection)
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
                listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
            except OSError as error:
                failure = error
                continue
            if failure is not None:
                taken = listener.getsockname()[1]
                say(
                    f"this job's nodes meet at port {taken}; the ports that come before it in their "
                    f"list are taken ({failure})"
                )
            return listener
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
        plan = self._plan
        answerer = handshake.Answerer(plan.job, plan.secret, self._munge, self.port)
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
            lines = visitor.lines.read()
            for line in lines or []:
                if visitor.lines.seal is not None:
                    visitor.has_left |= "left" in visitor.lines.seal.open(line)
                    continue
                reply = visitor.answerer.answer(line)
                if reply is not None:
                    visitor.lines.tell(reply)
                else:
                    visitor.lines.seal = visitor.answerer.seal
                    self._on_node(visitor)
        except (
            handshake.Refused,
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            OSError,
        ) as error:
            visitor.lines.tell({"version": handshake.VERSION, "refused": str(error)})
            lines = None
        if lines is not None or visitor not in self._visitors:
            return
        self._drop(visitor)
        if visitor.node is not None and not visitor.has_left and self._are_all_here:
            self._on_node_lost(visitor.node.host)

    def _on_node(self, visitor: _Visitor) -> None:
        assert visitor.node is not None
        for each in self._nodes:
            # The node has looked again, because something was wrong with that connection.
            if (
                each is not visitor
                and each.node is not None
                and each.node.rank == visitor.node.rank
            ):
                self._drop(each)
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
        others = [each.node.host for each in self._nodes if each.node is not None]
        hosts = [self._plan.host, *others]
        more = f" and {len(hosts) - _NAMED_MAX} more" if len(hosts) > _NAMED_MAX else ""
        return (
            f"waiting for other nodes: {self._count()} of {self._plan.size} ranks are here "
            f"(on {', '.join(hosts[:_NAMED_MAX])}{more})"
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
