# SPDX-License-Identifier: Apache-2.0
"""The client of this process, one at a time, and the functions that are told of each client."""

from __future__ import annotations

import contextlib
import gc
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
_has_left = False  # This process has had a client, and has left its job.


def _renew_lock() -> None:
    """Makes a new lock in a forked child: a thread of the parent may hold the old one."""
    global _current_lock
    _current_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def is_connected() -> bool:
    """Whether this process has a client of its own."""
    client = _current
    return client is not None and not client.is_inherited


def has_numbers() -> bool:
    """Whether rank() and its like have answers here. A fork of a process with a client has its
    parent's numbers, and can make no calls.
    """
    return _current is not None


_followers: list[Callable[[Client], object]] = []


def follow(follower: Callable[[Client], object]) -> None:
    """Calls `follower` with this process's client, if there is one, and with each later client."""
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
    """Makes this process's client. A second call returns the same client."""
    global _current, _has_left
    with _current_lock:
        client = _current
        late.explain()
        if client is None or client.is_inherited:
            if _has_left:  # The client before, whose memory is as much as this one's, is in cycles.
                gc.collect()
                _has_left = False
            client = _current = _connect(lambda: Client(agent_socket, timeout_s, alone, world))
            _tell_of(client)
        return client


# Methods of objects that keep a client.
_keepers = Calls()


def call_when_replaced(method: Callable[[Client], None]) -> None:
    """Registers `method` for each client that replaces this one, because its agent is lost, or
    because the process leaves its job and joins another. It is called as long as its object lives.
    """
    _keepers.add(method)


def _tell_of(client: Client) -> None:
    for follower in _followers:
        follower(client)
    _keepers(client)


def replace(make: Callable[[Client], Client]) -> Client:
    """Replaces this process's client, whose agent is lost, by the client that `make` returns."""
    global _current
    with _current_lock:
        lost = current()
        client = _current = _connect(lambda: make(lost))
        lost.abandon()
        _tell_of(client)
        return client


def _connect(make: Callable[[], Client]) -> Client:
    """Calls make() on another thread. The library waits for the whole job in one call, because the
    rank's place in the job goes with the connection, and this thread would not hear Ctrl-C in that
    call.
    """
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
        except futures.InvalidStateError:  # The caller was interrupted and no longer waits.
            client.close()

    threading.Thread(target=run, name="talweg-connect", daemon=True).start()
    try:
        return connected.result()
    except BaseException:
        # The caller was interrupted, perhaps just after the client had come.
        if not connected.cancel() and connected.exception() is None:
            connected.result().close()
        raise


def disconnect() -> None:
    """Ends this process's client, if there is one. Only forgets a client of the parent process."""
    global _current, _has_left
    with _current_lock:
        client, _current = _current, None
    if client is not None and not client.is_inherited:
        if not client.is_alone:
            agents.note_left()
        client.close()
        _has_left = True


def current() -> Client:
    """Returns this process's client. Raises NotInitialized before connect()."""
    client = _current
    if client is None:
        raise NotInitialized(
            "Talweg is not initialized in this process: call init() first, as talweg.init(), or "
            "bps.init() or hvd.init() in a program for BytePS or Horovod"
        )
    return client
