# SPDX-License-Identifier: Apache-2.0
"""Sends and receives of a process group.

Sends and receives of one sender, one receiver and one tag are matched by their order. All messages
from one rank to another have the same channels, whatever their tags (_message_rounds.py). So many
tags cost no more than one. A receive from any source takes part in the next call of each other
rank, and gets the first message that comes. The other messages wait for later receives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from talweg._call_site import call_site
from talweg._client import Client
from talweg._collectives.call_channel import CallChannel
from talweg._collectives.collectives import SEND, Given
from talweg._collectives.process_sets import Group, ProcessSet
from talweg.errors import InvalidArgument
from talweg.torch import _c10d_tensors as tensors_
from talweg.torch._group_calls import GroupCalls
from talweg.torch._inbox import Inbox, Mail
from talweg.torch._messages import Message, Posted, Receive
from talweg.torch._outbox import Outbox
from talweg.torch._profiling import shown


class PointToPoint:
    """The sends and receives of the rank `place` of `ranks`."""

    def __init__(self, client: Client, ranks: Sequence[int], place: int, calls: GroupCalls) -> None:
        self._client = client
        self._ranks = ranks
        self._place = place
        self._calls = calls
        self._lock = threading.RLock()
        self._mail = Mail(place, len(ranks), self._lock, self._inbox_of)
        self._outboxes: dict[int, Outbox] = {}

    def send(self, tensor: torch.Tensor, target: int, tag: int, timeout_s: float) -> Message:
        self._require_other(target, "send")
        what = self._what(f"send to rank {self._ranks[target]}", tensor)
        given = tensors_.given(
            SEND,
            [tensor],
            tensors_.whole(tensor, any_shape=True),
            [1],
            self._ranks[self._place],
            None,
        )
        given.site = call_site()
        posted = Posted(given, tensor, what, timeout_s, self._place, tag)
        message = Message(self._calls, self._lock, posted)
        with self._lock:
            outbox = self._outboxes.get(target)
            if outbox is None:
                way = *self._channels(self._place, target), self._second(self._place, target)
                outbox = self._outboxes[target] = Outbox(*way, self._lock)
        with shown("send", [tensor]):
            outbox.send(message)
        return message

    def receive(self, tensor: torch.Tensor, source: int, tag: int, timeout_s: float) -> Receive:
        self._require_other(source, "recv")
        receive = self._receive(tensor, source, f"rank {self._ranks[source]}", tag, timeout_s)
        with shown("recv", [tensor]):
            self._mail.receive(receive, source)
        return receive

    def receive_from_any(self, tensor: torch.Tensor, tag: int, timeout_s: float) -> Receive:
        if len(self._ranks) == 1:
            raise InvalidArgument("recv: the group has no other rank to receive from")
        receive = self._receive(tensor, -1, "any rank", tag, timeout_s)
        with shown("recv", [tensor]):
            self._mail.receive_from_any(receive)
        return receive

    def _receive(
        self, tensor: torch.Tensor, source: int, who: str, tag: int, timeout_s: float
    ) -> Receive:
        what = self._what(f"recv from {who}", tensor)
        rows = tensors_.whole(tensor, any_shape=True)
        root_rank = self._ranks[source] if source >= 0 else -1
        given = Given(SEND, root_rank, rows, [], 0, None, lambda rows, counts: (None, 0))
        given.site = call_site()
        posted = Posted(given, tensor, what, timeout_s, source, tag)
        return Receive(self._calls, self._lock, posted)

    def _what(self, operation: str, tensor: torch.Tensor) -> Callable[[], str]:
        self._calls.begin(operation)
        return lambda: self._calls.text_of(operation, [tensor])

    def _require_other(self, peer: int, operation: str) -> None:
        if peer == self._place or not 0 <= peer < len(self._ranks):
            raise InvalidArgument(
                f"{operation}: rank {peer} of the group "
                f"{'is this one' if peer == self._place else 'does not exist'}; name another of "
                f"its {len(self._ranks)} ranks"
            )

    def _channels(self, source: int, target: int) -> tuple[CallChannel, CallChannel]:
        """Returns the channels from `source` to `target`: for messages, and for those put off."""
        sender, receiver = self._ranks[source], self._ranks[target]
        group = Group(self._client, ProcessSet([sender, receiver]), "a message")
        name = f".{sender}.{receiver}"
        return self._calls.channel_of(name, group), self._calls.channel_of(f"{name}.late", group)

    def _second(self, source: int, target: int) -> int:
        """Returns the target's place, 0 or 1, among the two ranks of the channel."""
        return int(self._ranks[target] > self._ranks[source])

    def _inbox_of(self, mail: Mail, source: int) -> Inbox:
        channels = self._channels(source, self._place)
        return Inbox(mail, source, *channels, 1 - self._second(source, self._place))
