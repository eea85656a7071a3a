# SPDX-License-Identifier: Apache-2.0
"""A channel of collectives: the tensors of its calls, and what the ranks say to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from talweg._client import Client
from talweg._collectives.channels import Channel
from talweg._collectives.kinds import (
    INLINE_BYTES,
    OWN,
    ROOT,
    WHOLE,
    Given,
    InPlaceTensors,
    Lane,
    Rows,
    is_long,
)
from talweg._collectives.one_round import OneRound
from talweg._collectives.process_sets import Group
from talweg._collectives.sparse_rows import Traffic
from talweg._collectives.words import HEADER, Said, read
from talweg._declaration import DType, Op
from talweg._library.native_arguments import name_for_tensors

# The title of channels of calls without a name.
NAMELESS = "a call without a name"
# How many tensors of exactly their length, above 32 MiB, a channel makes.
_LONG_MAX = 2
# How many OneRounds a channel keeps.
_ONE_ROUNDS_MAX = 256


@dataclass
class Sites:
    """The rounds in which ranks tell where they made calls that do not fit together."""

    left_round: int = 0  # A round that this rank has not waited for to its end.
    has_failed: bool = False  # Whether this rank has missed such a round.


class CallChannel(Channel):
    """A channel of collectives: its tensors, and what the ranks say to each other."""

    def __init__(
        self, client: Client, name: str, group: Group, title: str, in_one: bool = False
    ) -> None:
        """`title` names the channel in error texts. With `in_one`, data of more than 32 MiB also
        goes in one round, through a tensor of exactly its length: see goes_in_one().
        """
        super().__init__(client, name, group)
        self.title = title
        self.in_one = in_one
        size = group.size
        capacity = HEADER.size + 8 * size + INLINE_BYTES
        self._control_bytes = -(-capacity // 64) * 64
        self.said: np.ndarray = np.empty(size * self._control_bytes, np.uint8)
        self.said_at = int(self.said.ctypes.data)
        self._holds_own: bool | None = None
        self._one_rounds: dict[bytes, OneRound] = {}  # Keyed by the words.
        self.in_place: InPlaceTensors | None = None  # For tensors that are reduced again and again.
        self.sites = Sites()
        # Whether a call has ended because a rank is lost. All ranks that are left know it alike.
        self.has_lost_a_rank = False
        # The tensors of exactly their length that calls have used. All ranks know them alike.
        self._long: set[Lane] = set()
        # What the last sparse sum of each tensor has moved. All ranks know the same.
        self.last_sparse: dict[Rows, Traffic] = {}

    def text_of(self, call: str) -> str:
        """Returns how error texts name a call of the channel: "all_gather 'rows'"."""
        if self.title.startswith(("talweg.collectives", NAMELESS)):
            return f"{call} without a name"
        return f"{call} '{self.title}'"

    def control(self) -> int:
        """The tensor in which ranks say what they call."""
        shares = (OWN, WHOLE)
        return self.declare(self.name, DType.U8, Op.BROADCAST, shares, 0, self._control_bytes)

    def holds_own(self) -> bool:
        """Whether contributions have room for only the rank's own parts. The same at all ranks."""
        if self._holds_own is None:
            self._holds_own = self.client.connection.parts_held(self.control()) == 1
        return self._holds_own

    @property
    def overlaps(self) -> bool:
        """Whether a call may begin while the last round of the previous call is under way, so that
        links do not rest. This takes two tensors for each lane. If ranks read each other's
        contributions, there are no links, and a tensor of a long call's own length is large.
        """
        return not self.holds_own() and not self.in_one

    def turn_of(self, control_round: int) -> int:
        """Returns the turn (Lane) of the call with that control round. It is the same at all ranks,
        and differs from the turns of the calls before and after it.
        """
        return control_round % 2 if self.overlaps else 0

    def read_said(self, turn: int) -> list[Said]:
        """Returns what the ranks have said in the control round that is over."""
        return read(self.said, self.group, self.holds_own(), turn)

    def goes_in_one(self, given: Given, nbytes: int) -> bool:
        """Whether data of that length needs several rounds elsewhere, and goes in one round here.

        A tensor keeps its memory, so the channel has few of them, those of the first calls. Where
        ranks may have joined each length has one, because they take part in no further rounds.
        """
        if not self.in_one or not is_long(given.kind, nbytes, self.group.size):
            return False
        lane = long_lane(given, nbytes)
        may_have_joined = self.client.names_watcher is not None
        return lane in self._long or len(self._long) < _LONG_MAX or may_have_joined

    def note_long(self, lane: Lane) -> None:
        """Notes that a call has used that tensor. All ranks do so in the same call."""
        self._long.add(lane)

    def lane_tensor(self, lane: Lane) -> int:
        """Returns the tensor for a lane."""
        if lane.in_place > 0:
            assert self.in_place is not None
            return self.in_place.tensor(lane.in_place)
        return self.declare(*self._spec_of(lane))

    def has_lane(self, lane: Lane) -> bool:
        """Whether the lane's tensor is declared."""
        return self.has_declared(*self._spec_of(lane))

    def _spec_of(self, lane: Lane) -> tuple[str, DType, Op, tuple[int, int], int, int]:
        kind, dtype, op, root, capacity_bytes, _, turn = lane
        words = f"{kind.gives}{kind.gets}.{dtype.name}.{op.name}.{root}"
        name = f"{self.name}.{words}.{capacity_bytes}{'.other' * turn}".lower()
        shares = (kind.gives, kind.gets)
        return name, dtype, op, shares, root, capacity_bytes // dtype.nbytes

    def same(self, words: bytes) -> bool:
        """Whether every rank has said these words."""
        nbytes = len(words) * self.group.size
        return self.said[:nbytes].tobytes() == words * self.group.size

    def one_round(self, given: Given, words: bytes) -> OneRound | None:
        """Returns what makes the call in one round if all ranks say these words. None if the call
        takes more rounds, or if ranks say different words in it, such as the root's.
        """
        found = self._one_rounds.get(words)
        if found is None and OneRound.may_be(given, self.holds_own()):
            if len(self._one_rounds) >= _ONE_ROUNDS_MAX:
                self._one_rounds.clear()
            found = OneRound(given, words, self.group, self.said_at, self.said.size)
            self._one_rounds[words] = found
        return found


def long_lane(given: Given, nbytes: int) -> Lane:
    """Returns the lane of exactly that length."""
    root = given.root_rank if given.kind.gives == ROOT else 0
    return Lane(given.kind, given.dtype, given.op, root, nbytes)


def channel_of(client: Client, name: str | None, group: Group, title: str = "") -> CallChannel:
    """Returns the channel of calls of that name, or of calls without a name. `title`: that of
    CallChannel(), if it is not the name.
    """
    own = "talweg.collectives" if name is None else f"{name}.collective"
    return channel_named(client, own, group, title or name or own)


def channel_named(
    client: Client, name: str, group: Group, title: str, in_one: bool = False
) -> CallChannel:
    """Returns the channel of that name; makes it by CallChannel() if there is none."""
    name = name_for_tensors(name)
    key = (name, group.ranks)
    with client.channels_lock:
        channel: CallChannel | None = client.channels.get(key)
        is_new = channel is None
        if channel is None:
            channel = client.channels[key] = CallChannel(client, name, group, title, in_one)
    if is_new and client.names_watcher is not None:
        client.names_watcher.on_channel(channel)
    return channel
