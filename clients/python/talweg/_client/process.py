# SPDX-License-Identifier: Apache-2.0
"""The client of this process, one at a time, and the functions that are told of each client."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from talweg._calls import Calls
from talweg._client import agents, late
from talweg._client.attempt import Attempt
from talweg._client.client import Client
from talweg._library.native_arguments import nanoseconds
from talweg._node.launchers import World
from talweg.errors import Closed, InvalidArgument, NotInitialized, TalwegError

_current: Client | None = None
# A signal handler may call disconnect() on the thread that holds the lock.
_current_lock = threading.RLock()
_attempt: Attempt | None = None  # The one that connect() or replace() waits for.
_last: tuple[Any, Attempt] | None = None  # What connect() was told, and its attempt that failed.
_has_left = False  # This process has had a client, and has left its job.


def _renew_lock() -> None:
    """Makes a new lock in a forked child: a thread of the parent may hold the old one."""
    global _current_lock, _attempt, _last
    _current_lock = threading.RLock()
    _attempt = _last = None


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
            client = _connect(timeout_s, (agent_socket, alone, world, dict(os.environ)))
        return client


def _connect(timeout_s: float, told: tuple[str | None, bool | None, World | None, Any]) -> Client:
    """Goes on with the last call's attempt if that one was given up and still waits, so that this
    process has one place in the job. Else, or if that one fails, makes another attempt.
    """
    global _last
    _check_nobody_waits()
    agent_socket, alone, world, _ = told
    nanoseconds(timeout_s)  # Raises InvalidArgument for an invalid time.
    begin_s, left_s = time.monotonic(), timeout_s
    last, _last = _last, None
    attempt = last[1] if last is not None and last[0] == told and last[1].resume() else None
    try:
        if attempt is not None:
            try:
                return _make_current(attempt, timeout_s=timeout_s)
            except Closed:
                raise
            except TalwegError:
                left_s = timeout_s - (time.monotonic() - begin_s)
                if left_s <= 0:
                    raise
        attempt = Attempt(lambda: Client(agent_socket, left_s, alone, world))
        return _make_current(attempt)
    except BaseException:
        if attempt is not None:
            _last = (told, attempt)
        raise


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
        _check_nobody_waits()
        return _make_current(Attempt(lambda: make(lost)), lost)


def _check_nobody_waits() -> None:
    if _attempt is not None and not _attempt.is_given_up:
        raise InvalidArgument(
            "a signal handler has called init() or rejoin() while init() or rejoin() waits: call "
            "shutdown() first, which ends that wait"
        )


def _make_current(
    attempt: Attempt, lost: Client | None = None, timeout_s: float | None = None
) -> Client:
    """Makes the attempt's client this process's, in place of the `lost` one. The caller holds the
    lock.
    """
    global _current, _attempt
    outer, _attempt = _attempt, attempt
    try:
        client = _current = attempt.wait(timeout_s)
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
