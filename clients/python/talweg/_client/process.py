# SPDX-License-Identifier: Apache-2.0
"""Which client is this process's: one at a time, and who is told of each."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent import futures

from talweg._calls import Calls
from talweg._client import agents, late
from talweg._client.client import Client
from talweg._node.launchers import World
from talweg.errors import NotInitialized

_current: Client | None = None
_current_lock = threading.Lock()


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have had it."""
    global _current_lock
    _current_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def is_connected() -> bool:
    """Whether this process has a client of its own."""
    client = _current
    return client is not None and not client.is_inherited


_followers: list[Callable[[Client], object]] = []


def follow(follower: Callable[[Client], object]) -> None:
    """Has it called with this process's client, if there is one, and with each that comes later."""
    with _current_lock:
        _followers.append(follower)
        if _current is not None and not _current.is_inherited:
            follower(_current)


def connect(
    agent_socket: str | None,
    timeout_s: float,
    alone: bool | None = None,
    world: World | None = None,
) -> Client:
    """Makes this process's client, once: a second call returns the first one's."""
    global _current
    with _current_lock:
        client = _current
        late.explain()
        if client is None or client.is_inherited:
            client = _current = _connect(lambda: Client(agent_socket, timeout_s, alone, world))
            _tell_of(client)
        return client


# Methods of objects that keep a client.
_keepers = Calls()


def call_when_replaced(method: Callable[[Client], None]) -> None:
    """Has a method called, as long as its object lives, with each client that comes after this
    one: where its agent is lost, or the process leaves its job and joins another.
    """
    _keepers.add(method)


def _tell_of(client: Client) -> None:
    for follower in _followers:
        follower(client)
    _keepers(client)


def replace(make: Callable[[Client], Client]) -> Client:
    """Has what `make` makes of this process's client, whose agent is lost, take its place."""
    global _current
    with _current_lock:
        lost = current()
        client = _current = _connect(lambda: make(lost))
        lost.abandon()
        _tell_of(client)
        return client


def _connect(make: Callable[[], Client]) -> Client:
    """`make()`, on another thread: the library waits for the whole job in one call, as its place
    in the job goes with the connection, and this thread would not hear Ctrl-C in it."""
    connected: futures.Future[Client] = futures.Future()

    def run() -> None:
        try:
            client = make()
        except BaseException as error:
            with contextlib.suppress(futures.InvalidStateError):
                connected.set_exception(error)
            return
        try:
            connected.set_result(client)
        except futures.InvalidStateError:  # Nobody waits for it any more.
            client.close()

    threading.Thread(target=run, name="talweg-connect", daemon=True).start()
    try:
        return connected.result()
    except BaseException:
        # Interrupted, perhaps when it had just come.
        if not connected.cancel() and connected.exception() is None:
            connected.result().close()
        raise


def disconnect() -> None:
    """Ends this process's client, if there is one; a parent's is only forgotten."""
    global _current
    with _current_lock:
        client, _current = _current, None
    if client is not None and not client.is_inherited:
        if not client.is_alone:
            agents.note_left()
        client.close()


def current() -> Client:
    """This process's client; NotInitialized before connect()."""
    client = _current
    if client is None:
        raise NotInitialized("Talweg is not initialized in this process: call talweg.init() first")
    return client
