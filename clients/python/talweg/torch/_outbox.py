# SPDX-License-Identifier: Apache-2.0
"""Sends a rank's messages to one other rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Steps
from talweg._collectives.collectives import can_begin
from talweg.errors import TalwegError
from talweg.torch._message_rounds import Goes, Sender
from talweg.torch._messages import Lock, Message, MessageJob


@dataclass
class _Sent:
    message: Message
    number: int = 0
    goes: Goes = Goes.WITH_WORDS


@dataclass
class _Asked:
    """A call in which the receiver asks for a message that was put off."""

    sent: _Sent | None = None  # None until the receiver has told which message it wants.


class Outbox:
    """The messages to one rank, which leave in the order of their sends.

    `receiver` is that rank's place among the two ranks of `channel`. `late` is the channel for
    messages that are put off.
    """

    def __init__(self, channel: CallChannel, late: CallChannel, receiver: int, lock: Lock) -> None:
        self._channel = channel
        self._late = late
        self._receiver = receiver
        self._lock = lock
        self._under_way: dict[int, _Sent] = {}  # Messages, by the number of their control round.
        # One call for each message that is put off. In it the receiver asks for one of them.
        self._asked: deque[MessageJob] = deque()

    def send(self, message: Message) -> None:
        sent = _Sent(message)
        job = MessageJob(
            self._channel,
            partial(self._say, sent),
            partial(self._said, sent),
            partial(can_begin, self._channel, message.given),
        )
        message.line = deque([job])
        self._channel.submit(job)

    def _say(self, sent: _Sent) -> Steps:
        sender, given = Sender(self._channel, self._receiver), sent.message.given
        sent.goes = yield from sender.say(given, sent.message.tag, partial(self._push, sent))
        if sent.goes is Goes.AFTER_THEM:
            yield from sender.give(given)

    def _push(self, sent: _Sent, push: Callable[[], int]) -> int:
        """Pushes the round, and notes the message under its number.

        The receiver may ask for the message before this rank has taken the round.
        """
        with self._lock:
            sent.number = push()
            self._under_way[sent.number] = sent
            return sent.number

    def _said(self, sent: _Sent, failure: BaseException | None) -> None:
        if failure is not None or sent.goes is not Goes.WHEN_ASKED_FOR:
            with self._lock:
                self._under_way.pop(sent.number, None)
                sent.message.end(failure)
            return
        asked = _Asked()
        job = MessageJob(self._late, partial(self._hear, asked), partial(self._heard, asked))
        with self._lock:  # `_asked` and the channel get the jobs in the same order.
            self._asked.append(job)
            if not sent.message.is_over:  # The receiver may have asked for it in an earlier call.
                sent.message.line = self._asked
            self._late.submit(job)

    def _hear(self, asked: _Asked) -> Steps:
        sender = Sender(self._late, self._receiver)
        number, rows = yield from sender.hear()
        with self._lock:
            sent = asked.sent = self._under_way.pop(number, None)
        if sent is None:
            raise TalwegError(f"send: a receiver asks for message {number}, which is not put off")
        yield from sender.require_alike(sent.message.given, rows)
        yield from sender.give(sent.message.given)

    def _heard(self, asked: _Asked, failure: BaseException | None) -> None:
        with self._lock:
            self._asked.popleft()
            if asked.sent is None:
                put_off = (
                    number
                    for number, each in self._under_way.items()
                    if each.goes is Goes.WHEN_ASKED_FOR
                )
                first = next(put_off, None)
                asked.sent = None if first is None else self._under_way.pop(first)
            if asked.sent is not None:
                asked.sent.message.end(failure)
