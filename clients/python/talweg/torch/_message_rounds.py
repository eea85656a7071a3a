# SPDX-License-Identifier: Apache-2.0
"""The protocol between the sender and the receiver of messages, and its rounds.

The messages from one rank to another are calls of one channel, in the order of the sends. Tags do
not matter for that. In a call's control round the sender tells the tag, the tensor's dtype and
shape, and up to 4 KiB of data. The receiver *names* the messages that it waits for. Then

    a message of at most 4 KiB    has arrived: the receiver keeps it until a receive wants it
    a longer one that was named   follows at once
    any other one                 is put off: it stays with its sender

A message that is put off comes in a call of a second channel. There the receiver asks for the
message by the number of its control round. So no rank keeps long messages of others, and tags cost
nothing.
"""

from __future__ import annotations

import ctypes
import enum
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from talweg._collectives.call_channel import CallChannel
from talweg._collectives.call_data import Parts, carry
from talweg._collectives.callers import callers
from talweg._collectives.channels import Steps, Wait
from talweg._collectives.kinds import INLINE_BYTES, SEND, Given, Rows
from talweg._collectives.words import HEADER, Said, check_alike, header, read_rows

# How many messages a receiver names. A longer list would only cost time.
NAMED_MAX = 16
# A message is named by its tag or its number, and a header(). The receiver tells first how many
# names follow.
_NUMBER = struct.Struct("<q")
_NAME_BYTES = _NUMBER.size + HEADER.size
# Makes a push, and returns its round.
Pushes = Callable[[Callable[[], int]], int]


class Came(NamedTuple):
    """A message, as its sender has described it in the control round."""

    number: int
    tag: int
    rows: Rows
    data: int  # The address of a short message's data, which is there until the next round.

    @property
    def is_short(self) -> bool:
        return self.rows.row_bytes <= INLINE_BYTES


class Goes(enum.Enum):
    """When the data of a message goes: in the control round, after it, or when asked for."""

    WITH_WORDS = 0
    AFTER_THEM = 1
    WHEN_ASKED_FOR = 2


@dataclass
class Receiver:
    """The receiver's side of one call. Each method is a generator of the call's steps."""

    channel: CallChannel
    sender: int  # The sender's place among the two ranks.
    _round: int = 0

    def hear(self, names: Sequence[bytes]) -> Steps:
        """Names messages, and returns the one that has come, as Came."""
        said = _NUMBER.pack(len(names)) + b"".join(names)
        self._round = yield from _control(self.channel, said)
        at = len(said) if self.sender == 1 else 0
        view = memoryview(self.channel.said.data)
        (tag,), rows = _NUMBER.unpack_from(view, at), read_rows(view, at + _NUMBER.size)
        return Came(self._round, tag, rows, self.channel.said_at + at + _NAME_BYTES)

    def ask(self, given: Given, came: Came) -> Steps:
        """Asks for a message that was put off. Raises Mismatch if it does not fit this tensor."""
        self._round = yield from _control(self.channel, name_of(came.number, given))
        yield from self.require_alike(given, came)

    def require_alike(self, given: Given, came: Came) -> Steps:
        """Raises Mismatch, as the sender does, if the message does not fit this rank's tensor."""
        assert given.rows is not None
        yield from _require_alike(self.channel, given, self.sender, came.rows, given.rows)

    def take(self, given: Given, came: Came, out: int | None) -> Steps:
        """Takes the message's data to the address `out`; drops it if `out` is None."""
        nbytes = came.rows.row_bytes
        turn = self.channel.turn_of(self._round)
        yield from carry(self.channel, given, 0, turn, Parts(0, []), Parts(out, [nbytes]), nbytes)


@dataclass
class Sender:
    """The sender's side of one call. Each method is a generator of the call's steps."""

    channel: CallChannel
    receiver: int  # The receiver's place among the two ranks.
    round: int = 0

    def say(self, given: Given, tag: int, pushed: Pushes) -> Steps:
        """Describes a message, and gives its data if it is short. Returns when the data goes.

        `pushed` pushes the round and notes its number, because the receiver may ask for the message
        at once. Raises Mismatch if the receiver waits for another tensor with this tag.
        """
        if given.is_ready is not None:
            yield Wait(0, 0, 0, 0, is_ready=given.is_ready)
        assert given.rows is not None
        nbytes = given.rows.row_bytes
        is_short = nbytes <= INLINE_BYTES
        said = name_of(tag, given)
        if is_short:
            said += ctypes.string_at(given.address, nbytes)
        self.channel.client.count_pushed_bytes(nbytes)
        self.round = yield from _control(self.channel, said, not is_short, pushed)
        wanted = self._wanted(len(said) if self.receiver == 1 else 0, tag)
        if wanted is not None:
            place = 1 - self.receiver
            yield from _require_alike(self.channel, given, place, given.rows, wanted)
        if is_short:
            return Goes.WITH_WORDS
        return Goes.AFTER_THEM if wanted is not None else Goes.WHEN_ASKED_FOR

    def _wanted(self, at: int, tag: int) -> Rows | None:
        """Returns the rows of the message that the receiver has named with that tag, if any."""
        view = memoryview(self.channel.said.data)
        (count,) = _NUMBER.unpack_from(view, at)
        at += _NUMBER.size
        for begin in range(at, at + count * _NAME_BYTES, _NAME_BYTES):
            if _NUMBER.unpack_from(view, begin)[0] == tag:
                return read_rows(view, begin + _NUMBER.size)
        return None

    def hear(self) -> Steps:
        """Returns the number of the message that the receiver asks for, and its tensor's rows."""
        self.round = yield from _control(self.channel, b"")
        view = memoryview(self.channel.said.data)
        return _NUMBER.unpack_from(view, 0)[0], read_rows(view, _NUMBER.size)

    def require_alike(self, given: Given, wanted: Rows) -> Steps:
        """Raises Mismatch, as the receiver does, if it has asked for another tensor."""
        assert given.rows is not None
        yield from _require_alike(self.channel, given, 1 - self.receiver, given.rows, wanted)

    def give(self, given: Given) -> Steps:
        """Gives the data of a message that was named or asked for."""
        assert given.rows is not None
        nbytes = given.rows.row_bytes
        turn = self.channel.turn_of(self.round)
        own = Parts(given.address, [nbytes])
        yield from carry(self.channel, given, 0, turn, own, own, nbytes)


def name_of(number: int, given: Given) -> bytes:
    """Returns the name of a message: its tag or number, and the header of its tensor."""
    return _NUMBER.pack(number) + header(given, 1)


def are_alike(one: Rows, other: Rows) -> bool:
    """Whether a message of one tensor may go to the other."""
    return (one.dtype, one.row_bytes) == (other.dtype, other.row_bytes)


def _push(push: Callable[[], int]) -> int:
    return push()


def _control(
    channel: CallChannel, said: bytes, pushes_more: bool = True, pushed: Pushes = _push
) -> Steps:
    """Makes a control round, and returns its number."""
    control, connection = channel.control(), channel.client.connection
    round_ = pushed(lambda: connection.push_parts(control, said, [len(said)]))
    yield Wait(control, round_, channel.said_at, channel.said.size, pushes_more)
    return round_


def _require_alike(
    channel: CallChannel, given: Given, sender: int, sent: Rows, wanted: Rows
) -> Steps:
    if are_alike(sent, wanted):
        return
    of_both: Iterable[Rows] = (sent, wanted) if sender == 0 else (wanted, sent)
    told = [
        Said(SEND, b"", 1, rows, [1], 0, False, given.op, given.root_rank, 0) for rows in of_both
    ]
    who = yield from callers(channel, given, told)
    check_alike(channel.title, channel.group, told, None, who)
