# SPDX-License-Identifier: Apache-2.0
"""What ranks say to each other in a call's control round, and whether it fits together."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from talweg._collectives.kinds import (
    ADASUM,
    ALL_GATHER_OF_SOME,
    ALL_REDUCE,
    BROADCAST,
    INLINE_BYTES,
    JOINED,
    KINDS,
    MORE_MAX,
    NOT_IN_PLACE,
    OWN,
    REDUCE,
    ROOT,
    ROW,
    SEND,
    Given,
    Kind,
    Lane,
    Rows,
    lane_of,
)
from talweg._collectives.process_sets import Group
from talweg._declaration import DType, Op
from talweg.errors import Mismatch

# kind, op, dimensions of a row, dtype of a reduction; root; bytes of a row; dtype; the row's shape; rows. Then
# the rows of each part that the rank gives, 8 bytes each, then its data.
HEADER = struct.Struct("<BBBBiq16s11qq")
# An all_reduce has the number of its in-place tensor between the rows and the data.
_IN_PLACE = struct.Struct("<q")
DIMENSIONS_MAX = 11
_ALIKE_BYTES = HEADER.size - 8  # All except the rows.
_ANY_TENSOR = 255  # Instead of the number of dimensions: the rank takes what the root gives.
_ANY_SHAPE = 64  # Added to that number: other ranks may have other shapes.
_MORE = (
    16  # Above every kind's number, to which it is added once for each later call of the handle.
)


class Caller(NamedTuple):
    """Which function a rank has called, and where, as far as that is known."""

    call: str = ""
    site: str = ""


@dataclass
class Said:
    """What one rank has said in the control round."""

    kind: Kind
    alike: bytes
    total_rows: int
    rows: Rows | None
    part_rows: Sequence[int]
    data_at: int
    inline: bool
    op: int
    root_rank: int
    dtype: int  # The dtype of a reduction.
    more: int = 0
    lane: Lane | None = None  # Where the rank's data has already gone.

    def __str__(self) -> str:
        return self.text()

    def text(self, call: str = "") -> str:
        """Returns a text for people. `call` names the program's call; if empty, the kind's name is
        used.
        """
        text = call or self.kind.name
        if self.kind.reduces:
            text += f" {Op(self.op).name.lower()}"
        if self.rows is not None:
            shape = list(self.rows.row_shape)
            if self.kind in (REDUCE, SEND, ALL_REDUCE, BROADCAST, ADASUM):  # They go whole.
                text += f" of {self.rows.dtype}{shape}"
            elif self.kind.equal:
                text += f" of {self.rows.dtype}{[self.total_rows, *shape]}"
            else:
                text += f" of {self.rows.dtype} rows of {shape}"
        if ROOT in (self.kind.gives, self.kind.gets):
            text += f" with root {self.root_rank}"
        if self.more > 0:
            text += (
                f", with {self.more}{' or more' * (self.more == MORE_MAX)} to follow in one call"
            )
        return text


def block(given: Given) -> bytes:
    """Returns what this rank says of its call, before the data."""
    counts = given.part_rows
    words = header(given, sum(counts)) + struct.pack(f"<{len(counts)}q", *counts)
    return words + _IN_PLACE.pack(given.in_place) if given.kind is ALL_REDUCE else words


def header(given: Given, total_rows: int) -> bytes:
    rows = given.rows
    if rows is None:
        kind = given.kind.number + _MORE * given.more
        dims = [0] * DIMENSIONS_MAX
        return HEADER.pack(kind, given.op, _ANY_TENSOR, 0, given.root_rank, 0, b"", *dims, 0)
    dims = [*rows.row_shape, *[0] * (DIMENSIONS_MAX - len(rows.row_shape))]
    return HEADER.pack(
        given.kind.number + _MORE * given.more,
        given.op,
        len(rows.row_shape) + _ANY_SHAPE * rows.any_shape,
        given.dtype if given.kind.reduces else 0,
        given.root_rank,
        rows.row_bytes,
        rows.dtype.encode()[:16],
        *dims,
        total_rows,
    )


def _rows_of(dimensions: int, dims: Sequence[int], dtype: bytes, row_bytes: int) -> Rows:
    any_shape, dimensions = divmod(dimensions, _ANY_SHAPE)
    return Rows(dtype.rstrip(b"\0").decode(), tuple(dims[:dimensions]), row_bytes, any_shape > 0)


def read_rows(said: memoryview, at: int) -> Rows:
    """Returns the rows that a header() tells of. That must be the header of a tensor."""
    _, _, dimensions, _, _, row_bytes, dtype, *dims = HEADER.unpack_from(said, at)
    return _rows_of(dimensions, dims, dtype, row_bytes)


def read_header(view: memoryview, at: int) -> Said | None:
    """Returns what a header() tells. None: a rank has written nothing there."""
    number, op, dimensions, wire, root_rank, row_bytes, dtype, *dims = HEADER.unpack_from(view, at)
    if number == 0:
        return None
    more, number = divmod(number, _MORE)
    kind = KINDS[number]
    rows = None
    if dimensions != _ANY_TENSOR:
        rows = _rows_of(dimensions, dims, dtype, row_bytes)
    alike = bytes(view[at : at + _ALIKE_BYTES + (8 if kind.equal else 0)])
    return Said(kind, alike, dims[-1], rows, [dims[-1]], 0, False, op, root_rank, wire, more)


def read(
    said: np.ndarray,
    group: Group,
    inlines_reductions: bool,
    turn: int = 0,
) -> list[Said]:
    """Returns what each rank of the group has said. The call's data takes `turn` (Lane)."""
    at, every = 0, []
    view = memoryview(said.data)
    for place in range(group.size):
        each = read_header(view, at)
        assert each is not None
        kind, row_bytes = each.kind, each.rows.row_bytes if each.rows is not None else 0
        root = group.ranks.index(each.root_rank) if each.root_rank in group.ranks else -1
        parts = kind.parts_given(place, root, group.size)
        at += HEADER.size
        each.part_rows = struct.unpack_from(f"<{parts}q", view, at)
        at += 8 * parts
        in_place = NOT_IN_PLACE
        if kind is ALL_REDUCE:
            (in_place,) = _IN_PLACE.unpack_from(view, at)
            at += _IN_PLACE.size
        each.data_at = at
        nbytes = sum(each.part_rows) * row_bytes
        each.inline = nbytes <= INLINE_BYTES and (inlines_reductions or not kind.reduces)
        if each.inline:
            at += nbytes
        elif kind.reduces:
            largest = max(each.part_rows) * row_bytes
            of = (kind, DType(each.dtype), Op(each.op), each.root_rank, largest, group.size)
            each.lane = lane_of(*of, in_place, turn)
        every.append(each)
    return every


def has_joined(every: Sequence[Said]) -> bool:
    """Whether a rank has joined, and makes no call."""
    return any(said.kind is JOINED for said in every)


def with_stand_ins(
    name: str, group: Group, every: list[Said], who: Sequence[Caller] = ()
) -> list[Said]:
    """Returns `every`, in which joined ranks give zeros to a reduction, and no rows to a gather.

    Raises Mismatch if the others differ, or if their call needs every rank. `who`: see
    check_alike().
    """
    callers = [rank for rank, said in zip(group.ranks, every) if said.kind is not JOINED]
    told = [said for said in every if said.kind is not JOINED]
    of_callers = [each for each, said in zip(who, every) if said.kind is not JOINED]
    check_alike(name, group, told, callers, of_callers)
    first = told[0]
    if first.kind is ALL_REDUCE and (
        first.lane is not None or first.inline or first.total_rows == 0
    ):
        stand_in = first
    elif first.kind is ALL_GATHER_OF_SOME:
        stand_in = replace(first, total_rows=0, part_rows=[0], inline=True)
    else:
        joined = [str(rank) for rank in group.ranks if rank not in callers]
        idle = f"rank {joined[0]} has" if len(joined) == 1 else f"ranks {', '.join(joined)} have"
        mismatch = Mismatch(
            f"'{name}{group.suffix}': rank {callers[0]} calls {_text(told, of_callers, 0)}, but "
            f"{idle} joined (hvd.join()): until all have, only reductions and barriers go on"
            + _where(callers, of_callers, 0)
        )
        mismatch.has_joined = True
        raise mismatch
    return [stand_in if said.kind is JOINED else said for said in every]


def _text(every: Sequence[Said], who: Sequence[Caller], place: int) -> str:
    """Returns a text for the call of one rank."""
    return every[place].text(who[place].call if who else "")


def _where(ranks: Sequence[int], who: Sequence[Caller], *places: int) -> str:
    """Returns a text that says where ranks make their calls; empty if that is not known."""
    known = [
        f"rank {ranks[place]} at {who[place].site}" for place in places if who and who[place].site
    ]
    return f" ({', '.join(known)})" if known else ""


def _is_alike(one: Said, other: Said) -> bool:
    """Whether two ranks make the same call, with tensors that fit together."""
    if one.rows is None or other.rows is None:
        return (one.kind, one.root_rank, one.more) == (other.kind, other.root_rank, other.more)
    if not one.rows.any_shape and not other.rows.any_shape:
        return one.alike == other.alike
    return (one.kind, one.root_rank, one.more, one.rows.dtype, one.rows.row_bytes) == (
        other.kind,
        other.root_rank,
        other.more,
        other.rows.dtype,
        other.rows.row_bytes,
    )


def end_apart(every: Sequence[Said]) -> bool:
    """Whether ranks make different numbers of calls in one: then the rest cannot fit."""
    return len({said.more for said in every if said.kind is not JOINED}) > 1


def check_alike(
    name: str,
    group: Group,
    every: list[Said],
    ranks: Sequence[int] | None = None,
    who: Sequence[Caller] = (),
) -> Rows:
    """Raises Mismatch, at every rank alike, if ranks call different things. Returns what the rows
    of the tensor are.

    `ranks` are the ranks that `every` is of; the default is the group. `who` has as many, or none.
    """
    ranks = group.ranks if ranks is None else ranks
    first = every[0]
    reference = first
    for said in every:
        if said.rows is not None:
            reference = said
            break
    for one, place in ((first, 0), (reference, every.index(reference))):
        for other, said in enumerate(every):
            if not _is_alike(one, said):
                raise Mismatch(
                    f"'{name}{group.suffix}': rank {ranks[place]} calls "
                    f"{_text(every, who, place)}, but rank {ranks[other]} calls "
                    f"{_text(every, who, other)}: all ranks must call the same collectives, of "
                    "tensors that fit together, in the same order"
                    + _where(ranks, who, place, other)
                )
    for other, said in enumerate(every):
        if first.kind.reduces and said.part_rows != first.part_rows:
            raise Mismatch(
                f"'{name}{group.suffix}': rank {ranks[0]} calls {_text(every, who, 0)}, in parts of "
                f"{list(first.part_rows)}, but rank {ranks[other]} in parts of "
                f"{list(said.part_rows)}: all ranks must cut it alike"
                + _where(ranks, who, 0, other)
            )
    assert reference.rows is not None
    return reference.rows


def got_parts(given: Given, group: Group, every: list[Said]) -> list[tuple[int, int]]:
    """Returns the parts that this rank gets: for each the giver's place, and which of its parts."""
    kind = given.kind
    if kind.gets == ROOT and given.root_rank != group.ranks[group.place]:
        return []
    if kind.reduces:
        return [(group.place, group.place if kind.gets == OWN else 0)]
    if kind.gives == ROOT:
        return [(group.ranks.index(given.root_rank), group.place if kind.gets == OWN else 0)]
    if kind.gives == ROW:
        return [(place, group.place) for place in range(group.size)]
    return [(place, 0) for place in range(group.size)]


def got_alike(given: Given, group: Group) -> list[int]:
    """Returns the rows of each part that this rank gets, if all ranks give what this one does."""
    kind, place = given.kind, group.place
    if kind.gets == ROOT and given.root_rank != group.ranks[place]:
        return []
    part = place if ROW == kind.gives or OWN == kind.gets else 0
    return [given.part_rows[part]] * (1 if kind.reduces else group.size)
