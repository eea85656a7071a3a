# SPDX-License-Identifier: Apache-2.0
"""Matches the messages from other ranks with this rank's receives, by tag."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Steps
from talweg.errors import Mismatch
from talweg.torch._message_rounds import NAMED_MAX, Came, Receiver
from talweg.torch._messages import Lock, MessageJob, Receive


@dataclass
class _Early:
    """A message that has come before its receive."""

    order: int
    came: Came
    data: bytes  # Empty for a long message, which stays with its sender.


class ByTag:
    """A queue for each tag. Empty queues are removed."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, tag: int, item: Any) -> None:
        self._queues.setdefault(tag, deque()).append(item)

    def first(self, tag: int) -> Any:
        """Returns the first item with that tag; None if there is none."""
        queue = self._queues.get(tag)
        return queue[0] if queue else None

    def take(self, tag: int) -> Any:
        """Removes and returns the first item with that tag. There must be one."""
        queue = self._queues[tag]
        item = queue.popleft()
        if not queue:
            del self._queues[tag]
        return item

    def firsts(self) -> Any:
        """Returns the first item of each tag. The tag with the oldest queue comes first."""
        return (queue[0] for queue in self._queues.values())

    def take_all(self) -> list[Any]:
        queues, self._queues = self._queues, {}
        return [item for queue in queues.values() for item in queue]


@dataclass
class _Arrival:
    """A call in which a message comes."""

    receive: Receive | None = None  # The receive that gets the message.
    put_off: Came | None = None
    failure: BaseException | None = None  # Why the receive cannot take the message.

    def land(self, came: Came) -> int | None:
        """Returns the address that the message's data goes to; None if nobody takes it."""
        if self.receive is None:
            return None
        try:
            return self.receive.land(came.rows)
        except Exception as failure:
            self.failure = failure
            return None


class Mail:
    """All messages to the rank at `place` of a group of `size` ranks.

    `inbox_of` makes the Inbox for messages from a place. A thread that holds `lock` sees each
    receive in one of these states: it waits in a queue, a call brings its message, or it is over.
    """

    def __init__(
        self, place: int, size: int, lock: Lock, inbox_of: Callable[[Mail, int], Inbox]
    ) -> None:
        self.lock = lock
        self._others = [each for each in range(size) if each != place]
        self._inbox_of = inbox_of
        self._inboxes: dict[int, Inbox] = {}
        self._from_any = ByTag()
        self._orders = itertools.count()

    def _inbox(self, place: int) -> Inbox:
        inbox = self._inboxes.get(place)
        if inbox is None:
            inbox = self._inboxes[place] = self._inbox_of(self, place)
        return inbox

    def receive(self, receive: Receive, place: int) -> None:
        """Gives the receive the next message from that place that has its tag."""
        with self.lock:
            receive.order = next(self._orders)
            self._inbox(place).receive(receive)

    def receive_from_any(self, receive: Receive) -> None:
        with self.lock:
            receive.order = next(self._orders)
            inboxes = [self._inbox(place) for place in self._others]
            early = [inbox for inbox in inboxes if inbox.early.first(receive.tag) is not None]
            if early:
                min(early, key=lambda each: each.early.first(receive.tag).order).receive(receive)
                return
            self._from_any.add(receive.tag, receive)
            for inbox in inboxes:
                inbox.carry_on()
                inbox.open(is_async=True)
            self.end_if_all_are_closed()  # All may have been closed before.

    # ----- With the lock -----

    @property
    def wants_any(self) -> bool:
        return bool(self._from_any)

    def next_order(self) -> int:
        return next(self._orders)

    def is_first(self, receive: Receive) -> bool:
        """Whether it was made before all receives from any source that have its tag."""
        other = self._from_any.first(receive.tag)
        return other is None or receive.order < other.order

    def take_any(self, tag: int) -> Receive | None:
        if self._from_any.first(tag) is None:
            return None
        receive: Receive = self._from_any.take(tag)
        return receive

    def end_if_all_are_closed(self) -> None:
        """Ends the receives from any source, if no rank can send anything more."""
        closed = [self._inbox(place).closed for place in self._others]
        if None not in closed:
            for receive in self._from_any.take_all():
                receive.end(closed[-1])


class Inbox:
    """The messages from one rank, which come in the order of its sends.

    `place` is the sender's place in the group, and `sender` its place among the two ranks of
    `channel`. `late` is the channel for messages that are put off.

    One call is open for each receive that waits for this sender, and one for all receives from any
    source. If a message comes that no receive waits for, the message is early, and another call is
    opened.
    """

    def __init__(
        self, mail: Mail, place: int, channel: CallChannel, late: CallChannel, sender: int
    ) -> None:
        self._mail = mail
        self._place = place
        self._channel = channel
        self._late = late
        self._sender = sender
        self._rank = channel.group.ranks[sender]
        self._wanted = ByTag()
        self._wanted_count = 0
        self.early = ByTag()
        self._open: deque[MessageJob] = deque()
        self._carried_on: MessageJob | None = None  # The last job that carry_on() has handed over.
        # The error after which nothing more comes: the rank has left, or a call has failed.
        self.closed: BaseException | None = None

    # ----- With the lock -----

    def receive(self, receive: Receive) -> None:
        """Gives the receive the first early message with its tag, or has it wait for the next."""
        if self.early.first(receive.tag) is None:
            self._wanted.add(receive.tag, receive)
            self._wanted_count += 1
            receive.line = self._open
            self.open(is_async=True)
            return
        early: _Early = self.early.take(receive.tag)
        receive.comes_from(self._place, self._rank)
        if not early.came.is_short:
            self._ask(receive, early.came)
            return
        arrival = _Arrival(receive)
        out = arrival.land(early.came)
        if out is not None:
            ctypes.memmove(out, early.data, len(early.data))
        receive.end(arrival.failure)

    def open(self, is_async: bool) -> None:
        """Opens the calls that are missing. `is_async` is False if the caller carries them on."""
        wants_any = self._mail.wants_any and self.closed is None
        while len(self._open) < self._wanted_count + wants_any:
            arrival = _Arrival()
            job = MessageJob(
                self._channel,
                partial(self._hear, arrival),
                partial(self._heard, arrival),
                # A receive from any source needs the call that is opened when this one ends.
                is_wanted=lambda: self._mail.wants_any,
            )
            self._open.append(job)
            self._channel.submit(job, is_async)

    def carry_on(self) -> None:
        """Has completion threads end the open calls, even if no thread waits for their receives."""
        if self._open and self._open[-1] is not self._carried_on:
            self._carried_on = self._open[-1]
            self._channel.call_when_done(self._carried_on, lambda: None)

    def _take(self, tag: int) -> Receive | None:
        """Removes and returns the receive that gets the next message with that tag, if any."""
        receive: Receive | None = self._wanted.first(tag)
        if receive is not None and self._mail.is_first(receive):
            self._wanted.take(tag)
            self._wanted_count -= 1
            return receive
        receive = self._mail.take_any(tag)
        if receive is not None:
            receive.comes_from(self._place, self._rank)
        return receive

    def _ask(self, receive: Receive, came: Came) -> None:
        arrival = _Arrival(receive)
        job = MessageJob(
            self._late, partial(self._fetch, arrival, came), partial(self._fetched, arrival)
        )
        receive.line = deque([job])
        self._late.submit(job)

    def _close(self, failure: BaseException) -> None:
        self.closed = failure
        self._wanted_count = 0
        for receive in self._wanted.take_all():
            receive.end(failure)
        self._mail.end_if_all_are_closed()

    # ----- The steps of calls -----

    def _hear(self, arrival: _Arrival) -> Steps:
        receiver = Receiver(self._channel, self._sender)
        with self._mail.lock:
            firsts = filter(self._mail.is_first, self._wanted.firsts())
            named = {each.tag: each for each in itertools.islice(firsts, NAMED_MAX)}
        came = yield from receiver.hear([each.name() for each in named.values()])
        wanted = named.get(came.tag)
        with self._mail.lock:
            receive = arrival.receive = self._take(came.tag)
            self.closed = None
            if receive is None and wanted is None:
                data = ctypes.string_at(came.data, came.rows.row_bytes) if came.is_short else b""
                self.early.add(came.tag, _Early(self._mail.next_order(), came, data))
                return
        if wanted is not None:
            yield from receiver.require_alike(wanted.given, came)
        if came.is_short:
            out = arrival.land(came)
            if out is not None:
                ctypes.memmove(out, came.data, came.rows.row_bytes)
        elif wanted is not None:
            yield from receiver.take(wanted.given, came, arrival.land(came))
        else:
            arrival.put_off = came

    def _heard(self, arrival: _Arrival, failure: BaseException | None) -> None:
        with self._mail.lock:
            if self._open.popleft() is self._carried_on:
                self._carried_on = None
            receive = arrival.receive
            if receive is not None and failure is None and arrival.put_off is not None:
                self._ask(receive, arrival.put_off)
            elif receive is not None:
                receive.end(failure or arrival.failure)
            if failure is not None and not isinstance(failure, Mismatch):
                self._close(failure)
            self.open(is_async=False)

    def _fetch(self, arrival: _Arrival, came: Came) -> Steps:
        receiver = Receiver(self._late, self._sender)
        assert arrival.receive is not None
        given = arrival.receive.given
        yield from receiver.ask(given, came)
        yield from receiver.take(given, came, arrival.land(came))

    def _fetched(self, arrival: _Arrival, failure: BaseException | None) -> None:
        assert arrival.receive is not None
        with self._mail.lock:
            arrival.receive.end(failure or arrival.failure)
