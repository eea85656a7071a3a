# SPDX-License-Identifier: Apache-2.0
"""An attacker on the path between the agents of a job and its aggregator, for tests."""

from __future__ import annotations

import re
import select
import socket
import threading
from collections.abc import Callable

from cluster import DEADLINE_S, Daemon

# Returns changed bytes. If it raises OSError, the connection breaks at both ends.
Change = Callable[[bytes], bytes]


def place_of(daemon: Daemon) -> tuple[str, int]:
    """Returns the address at which an aggregator says that it listens for agents."""
    found = re.match(r"(?:fi:)?tcp://([\d.]+):(\d+)", daemon.addresses["data"])
    assert found is not None, daemon.addresses
    return found[1], int(found[2])


class OnThePath:
    """A proxy for all bytes between the agents of a job and its aggregator.

    The aggregator listens on 127.0.0.1 and tells agents 127.0.0.2 with the same port, where the
    proxy listens. `touch` changes the next long piece of bytes to the aggregator or to the agent.
    """

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._target = ("", 0)
        self._change: dict[bool, Change | None] = {True: None, False: None}
        self._lock = threading.Lock()
        self._stops = threading.Event()
        self._threads: list[threading.Thread] = []
        self.connections = 0
        self.first_bytes: list[bytes] = []

    def open(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.2", port))
        self._start(self._accept)

    def close(self) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        if self._listener is not None:
            self._listener.close()

    def touch(self, change: Change, to_aggregator: bool = True) -> None:
        with self._lock:
            self._change[to_aggregator] = change

    def touched(self) -> bool:
        with self._lock:
            return not any(self._change.values())

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        assert self._listener is not None
        self._listener.settimeout(0.2)
        while not self._stops.is_set():
            try:
                agent, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            self._start(self._pass_on, agent, socket.create_connection(self._target))

    def _pass_on(self, agent: socket.socket, aggregator: socket.socket) -> None:
        said = b""
        with agent, aggregator:
            while not self._stops.is_set():
                ready, _, _ = select.select([agent, aggregator], [], [], 0.2)
                for source in ready:
                    to_aggregator = source is agent
                    try:
                        data = source.recv(65536)
                        if not data:
                            return
                        if to_aggregator and len(said) < 4096:
                            if not said:
                                self.first_bytes.append(b"")
                            said += data
                            self.first_bytes[-1] = said
                        if len(data) > 2000:
                            data = self._changed(data, to_aggregator)
                        (aggregator if to_aggregator else agent).sendall(data)
                    except OSError:
                        return

    def _changed(self, data: bytes, to_aggregator: bool) -> bytes:
        with self._lock:
            change = self._change[to_aggregator]
            self._change[to_aggregator] = None
        return change(data) if change else data
