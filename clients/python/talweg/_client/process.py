# SPDX-License-Identifier: Apache-2.0
"""The client of this process, one at a time, and the functions that are told of each client."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

from talweg._calls import Calls
from talweg._client import agents, late
from talweg._client.attempt import Attempt
from talweg._client.client import Client
from talweg._node.launchers import World
from talweg.errors import InvalidArgument, NotInitialized

_current: Client | None = None
# A signal handler may call disconnect() on the thread that holds the lock.
_current_lock = threading.RLock()
_attempt: Attempt | None = None  # The one that connect() or replace() waits for.
_has_left = False  # This process has had a client, and has left its job.


def _renew_lock() -> None:
    """Makes a new lock in a forked child: a thread of the parent may hold the old one."""
    global _current_lock, _attempt
    _current_lock = threading.RLock()
    _attempt = None


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
    """Makes this process's client. A second call returns the same client.

    Raises Closed if disconnect() is called meanwhile, on another thread or by a signal handler.
    """
    global _has_left
    with _current_lock:
        client = _current
        late.explain()
        if client is None or client.is_inherited:
            if _has_left:  # The client before, whose memory is as much as this one's, is in cycles.
                gc.collect()
                _has_left = False
            client = _make_current(lambda: Client(agent_socket, timeout_s, alone, world))
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
    """Replaces this process's client, whose agent is lost, by the client that `make` returns.

    Raises Closed if disconnect() is called meanwhile.
    """
    with _current_lock:
        lost = current()
        return _make_current(lambda: make(lost), lost)


def _make_current(make: Callable[[], Client], lost: Client | None = None) -> Client:
    """Makes this process's client, which replaces the `lost` one. The caller holds the lock."""
    global _current, _attempt
    outer = _attempt
    if outer is not None and not outer.is_given_up:
        raise InvalidArgument(
            "a signal handler has called init() or rejoin() while init() or rejoin() waits: call "
            "shutdown() first, which ends that wait"
        )
    attempt = _attempt = Attempt(make)
    try:
        client = _current = attempt.wait()
        if lost is not None:
            lost.abandon()
        _tell_of(client)
        if attempt.is_given_up and _current is client:  # It was given up just after it had come.
            disconnect()
        attempt.check()
        return client
    finally:
        _attempt = outer


def disconnect() -> None:
    """Ends this process's client, if there is one. Only forgets a client of the parent process.

    A connect() or replace() that waits raises Closed. A signal handler may call this, too.
    """
    global _current, _has_left
    attempt = _attempt
    if attempt is not None:
        attempt.give_up()
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
