# SPDX-License-Identifier: Apache-2.0
"""Calls of push_pull and broadcast that wait for the open round of their name.

The library pushes no second round of a tensor before the first one is taken. So a call of a name
whose round is open is queued: it begins when that round is over, which a completion thread takes
for the caller if the caller does not. Until then the call keeps a copy of its data, unless it is in
place. Calls of one name begin in the order in which they were made.

    a call of a name     that has no open round      begins
                         that has one, or a queue    is queued: talweg and talweg.torch, in RAM
                                                     raises Busy: other modules, and GPUs
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from talweg._call_site import call_site
from talweg._client import Client, Handle
from talweg._collectives import compared, rounds
from talweg._collectives.channels import Channel, Steps, Wait
from talweg._collectives.process_sets import Group
from talweg._collectives.rounds import Brought
from talweg._library.native_arguments import check_name_and_priority
from talweg.errors import Busy, Timeout


class _Queue(Channel):
    """The queued calls of one name in one group."""

    def __init__(self, client: Client, name: str, group: Group) -> None:
        super().__init__(client, name, group)
        self._wire_name = group.name_of(name)
        # The round that the first call waits for, and what is set when that round is over.
        self._ahead: Callable[[], Handle | None] = lambda: None
        self._is_over = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether a further call must wait for its turn."""
        return bool(self._jobs)

    def attend(self) -> None:
        """Does nothing: a call that begins may have to declare a tensor, which waits for ranks."""

    def steps(self, call: Callable[[], Handle]) -> Steps:
        """The steps of one queued call. Its result is the handle of its round."""
        while True:
            yield Wait(0, 0, 0, 0, is_ready=self._may_push)
            try:
                return call()
            except Busy:
                if open_round(self.client, self._wire_name) is None:
                    raise

    def _may_push(self, until: float | None) -> bool:
        """Waits until the name's last round is taken, or time.monotonic() is `until`."""
        try:
            self.client.left.wait_for(self._wire_name, _left_s(until))
        except Timeout:
            return False
        ahead = open_round(self.client, self._wire_name)
        if ahead is None:
            return True
        if not ahead.is_complete(self.client.connection):
            if self._ahead() is not ahead:
                self._ahead, self._is_over = weakref.ref(ahead), threading.Event()
                ahead.call_when_complete(self._is_over.set)
            if not self._is_over.wait(_left_s(until)):
                return False
        ahead.take_early()
        return True


def _left_s(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def open_round(client: Client, wire_name: str) -> Handle | None:
    """Returns the open round of that name, if it has a handle that somebody holds."""
    declared = client.tensors.known(wire_name)
    last: Handle | None = None if declared is None else declared.last()
    return None if last is None or last.done or last.taken else last


def start(client: Client, name: str | None, group: Group, brought: Brought) -> Handle:
    """Does the same as rounds.start(), but queues the call if a round of its name is open."""
    if name is None:
        return rounds.start(client, name, group, brought)
    wire_name = group.name_of(name)
    is_open = open_round(client, wire_name) is not None
    if client.left.has(wire_name) or not (is_open or must_wait(client, wire_name)):
        try:
            return rounds.start(client, name, group, brought)
        except Busy:
            if client.left.has(wire_name) or open_round(client, wire_name) is None:
                raise
    check_name_and_priority(name, brought.priority)
    rounds.require(client, f"tensor '{wire_name}'", brought.declaration)
    with client.channels_lock:
        queue = client.queues.get(wire_name)
        if queue is None:
            queue = client.queues[wire_name] = _Queue(client, name, group)
            client.channels["queued", wire_name] = queue
    own, kept, site = queue, rounds.kept(client, brought), call_site()

    def call() -> Handle:
        return rounds.start(client, name, group, kept, site)

    return compared.later(client, own, lambda: own.steps(call), brought.is_async)


def must_wait(client: Client, wire_name: str | None) -> bool:
    """Whether calls of that name are queued."""
    queue = client.queues.get(wire_name) if client.queues else None
    return queue is not None and queue.is_busy
