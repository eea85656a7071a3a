# SPDX-License-Identifier: Apache-2.0
"""The collectives, what a rank brings to a call, and which tensor its data goes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from talweg._call_site import CallSite
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._declaration import DType, Op

WHOLE, ROOT, OWN, ROW, COLUMN = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Kind:
    """A collective; the shares are those of talweg.h."""

    name: str
    number: int
    gives: int
    gets: int
    # Whether all ranks give tensors of the same shape, or the same but for the first dimension.
    equal: bool = False

    @property
    def reduces(self) -> bool:
        return self.gives == WHOLE

    def parts_given(self, place: int, root: int, size: int) -> int:
        if self.gives == ROOT and place != root:
            return 0
        return size if self.gets in (COLUMN, OWN) else 1

    def parts_held(self, size: int) -> int:
        """Returns how many parts a rank gives if every rank gives its own parts; else all."""
        if self.gives in (OWN, ROW):
            return size if self.gives == ROW else 1
        return self.part_count(size)

    def part_count(self, size: int) -> int:
        """Returns the number of parts of a tensor."""
        if self.gives == ROW:
            return size * size
        return size if OWN in (self.gives, self.gets) else 1


ALL_GATHER = Kind("all_gather", 1, OWN, WHOLE)
ALL_GATHER_INTO = Kind("all_gather_into", 2, OWN, WHOLE, equal=True)
REDUCE_SCATTER = Kind("reduce_scatter", 3, WHOLE, OWN, equal=True)
ALL_TO_ALL = Kind("all_to_all", 4, ROW, COLUMN)
GATHER = Kind("gather", 5, OWN, ROOT)
SCATTER = Kind("scatter", 6, ROOT, OWN)
REDUCE = Kind("reduce", 7, WHOLE, ROOT, equal=True)
SEND = Kind("send", 8, ROOT, WHOLE)
ALL_REDUCE = Kind("all_reduce", 9, WHOLE, WHOLE, equal=True)
BROADCAST = Kind("broadcast", 10, ROOT, WHOLE)
BARRIER = Kind("barrier", 11, OWN, WHOLE, equal=True)
# An all_gather that goes on without joined ranks: they give no rows.
ALL_GATHER_OF_SOME = Kind("all_gather", 12, OWN, WHOLE)
# An all_gather that goes on without lost ranks (survivors_gather.py).
ALL_GATHER_SURVIVORS = Kind("all_gather_survivors", 14, OWN, WHOLE)
# The first collective of an Adasum (adasum.py).
ADASUM = Kind("adasum", 15, ROW, COLUMN, equal=True)
# What a joined rank says (joining.py): it makes no call.
JOINED = Kind("join", 13, ROOT, WHOLE)
KINDS = {
    kind.number: kind
    for kind in (
        ALL_GATHER,
        ALL_GATHER_INTO,
        REDUCE_SCATTER,
        ALL_TO_ALL,
        GATHER,
        SCATTER,
        REDUCE,
        SEND,
        ALL_REDUCE,
        BROADCAST,
        BARRIER,
        ALL_GATHER_OF_SOME,
        ALL_GATHER_SURVIVORS,
        ADASUM,
        JOINED,
    )
}

INLINE_BYTES = 4096
_CAPACITY_BYTES_MIN = 4096
MORE_MAX = 15
# Values instead of an in-place tensor's number: the call's tensor has none; it has none yet; it has
# none, and the data goes in one round, through a tensor of exactly its length.
NOT_IN_PLACE, WANTS_IN_PLACE, IN_ONE = -1, 0, -2
# What all parts of a tensor take together, and what they take where data needs several rounds: of a
# reduction, and of a copy. The first call waits until every rank, agent and aggregator has that
# memory, several times.
_TENSOR_BYTES_MAX = 32 << 20
_REDUCED_BYTES_MAX = 16 << 20
_COPIED_BYTES_MAX = 8 << 20


def is_long(kind: Kind, largest: int, size: int) -> bool:
    """Whether parts of up to `largest` bytes take several rounds, or a tensor of their length."""
    return largest > _TENSOR_BYTES_MAX // kind.part_count(size)


def split_evenly(rows: int, parts: int) -> list[int]:
    """Returns the rows of each part; the first parts have the remainder."""
    each, more = divmod(rows, parts)
    return [each + (part < more) for part in range(parts)]


@dataclass(frozen=True)
class Rows:
    """The rows of a rank's tensor, all of one shape. A tensor that goes whole is one row."""

    dtype: str
    row_shape: tuple[int, ...]
    row_bytes: int
    # Whether other ranks' rows may have any shape with the same number of bytes.
    any_shape: bool = False


@dataclass
class Given:
    """What one rank brings to a call."""

    kind: Kind
    root_rank: int
    rows: Rows | None  # None: the rank takes what the root gives.
    part_rows: list[int]  # The rows of each part that the rank gives.
    address: int
    keep: Any
    # Makes the result for the parts that this rank gets, of so many rows each; returns it and its
    # address.
    allocate: Callable[[Rows, list[int]], tuple[Any, int]]
    # For reductions.
    op: Op = Op.BROADCAST
    dtype: DType = DType.U8
    factors: Factors = NO_FACTORS
    # The control round, once it has been pushed.
    pushed: int = 0
    # The in-place tensor of an all_reduce's tensor. WANTS_IN_PLACE asks for one, if it is worth it.
    # IN_ONE is said of long data.
    in_place: int = NOT_IN_PLACE
    # Waits until the data is there, or until time.monotonic() is the given time; returns whether it
    # is there. With None it waits as long as it takes. Any thread may call it. If the field is
    # None, the data is there from the beginning.
    is_ready: Callable[[float | None], bool] | None = None
    # For error texts: where the program makes the call, and the call's name there if `site` does
    # not give it. If `call` is empty, the kind's name is used.
    site: CallSite | None = None
    call: str = ""
    # How many calls of the same handle follow, the same at all ranks. MORE_MAX: that many or more.
    more: int = 0


class Lane(NamedTuple):
    """Which tensor the data of calls goes through."""

    kind: Kind
    dtype: DType
    op: Op
    root: int
    capacity_bytes: int  # The length of a part.
    in_place: int = 0  # Which in-place tensor; 0: one of those for all calls of this capacity.
    turn: int = 0  # Which of the two tensors, if calls that follow each other overlap.


class InPlaceTensors(Protocol):
    """Each tensor of the program that a channel reduces again and again has a tensor of the job for
    itself, its *in-place tensor*. The node's ranks sum it where the program's tensor lies.

    In-place tensors have numbers from 1. A call in which all ranks want one makes the next, so the
    numbers are the same at all ranks. Each rank decides alone which of its tensors has one.
    """

    def number_of(self, given: Given) -> int:
        """Returns that of the call's tensor. WANTS_IN_PLACE: it has none and is worth one."""

    def agree(self, given: Given) -> None:
        """Gives the next one to the call's tensor, because all ranks want one. The call's result
        is already there.
        """

    def tensor(self, number: int) -> int:
        """Returns the number that the library has given to it."""

    def push(self, number: int, given: Given) -> tuple[int, bool]:
        """Pushes the call's tensor. Returns the round, and whether its result comes to where it
        lies.
        """

    def retire(self, number: int) -> None:
        """Takes it from its tensor for good, because ranks differ on whose it is."""

    def begin_again(self) -> None:
        """Starts again, because others use the channel from now on, at all ranks: no tensor has
        one, and each may be given once more.
        """


def capacity_of(
    kind: Kind, largest: int, size: int, holds_own: bool = False, in_one: bool = False
) -> int:
    """Returns how many bytes a part of the tensor has room for, if parts have up to `largest`."""
    parts = kind.parts_held(size) if holds_own else kind.part_count(size)
    most = _TENSOR_BYTES_MAX // parts
    if in_one and largest > most:
        return largest
    if largest > most:
        most = (_REDUCED_BYTES_MAX if kind.reduces else _COPIED_BYTES_MAX) // parts
    capacity = _CAPACITY_BYTES_MIN
    while capacity < largest and capacity * 2 <= most:
        capacity *= 2
    return capacity


def lane_of(
    kind: Kind,
    dtype: DType,
    op: Op,
    root_rank: int,
    largest: int,
    size: int,
    in_place: int = NOT_IN_PLACE,
    turn: int = 0,
) -> Lane | None:
    """Returns the lane for parts of which the longest has `largest` bytes. None: they take several
    rounds, or none.
    """
    if in_place > 0:
        return Lane(kind, dtype, op, 0, largest, in_place)
    capacity = capacity_of(kind, largest, size, in_one=in_place == IN_ONE)
    if not 0 < largest <= capacity:
        return None
    root = root_rank if ROOT in (kind.gives, kind.gets) else 0
    return Lane(kind, dtype, op, root, capacity, turn=turn)
