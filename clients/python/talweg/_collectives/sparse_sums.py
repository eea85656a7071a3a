# SPDX-License-Identifier: Apache-2.0
"""Sums of tensors of which each rank gives some rows: docs/collectives.md#sparse-sums.

There are two ways:

    gathered    all ranks gather the rows of all, and each adds them up for itself
    dealt       an all_to_all brings each row to the rank that owns it, which adds up what the ranks
                have given; then all ranks gather the sums

Both have the same bits, because a row is added up in rank order. The second moves fewer bytes where
many ranks give the same rows. Each call goes the way that would have been the shorter one for the
last call of such a tensor in its channel, of which all ranks know the same. A gather goes on without
lost ranks, as dense sums do. So a call that loses a rank while rows are dealt gathers them instead.
All ranks do that alike: where some have their rows of the all_to_all and others have lost theirs,
the gather of the sums is Aborted, because it ends only with every rank's sums.

A rank that has joined (hvd.join()) takes part in a gather, with no rows, and owns none. The others
learn alike, in the control round of the all_to_all, that it has joined, and gather instead. Until
all have joined they deal no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from talweg._call_site import CallSite, call_site
from talweg._client import Client
from talweg._collectives import one_call, survivors_gather
from talweg._collectives.call_channel import CallChannel, channel_of
from talweg._collectives.channels import Job, Steps
from talweg._collectives.collectives import JobHandle
from talweg._collectives.family import require_dimensions
from talweg._collectives.kinds import (
    ALL_GATHER,
    ALL_GATHER_OF_SOME,
    ALL_GATHER_SURVIVORS,
    ALL_TO_ALL,
    Given,
    Kind,
    Rows,
)
from talweg._collectives.process_sets import Group
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._collectives.sparse_rows import (
    Part,
    SparseRows,
    Traffic,
    added,
    coalesced,
    dealt,
    in_order,
    index_dtype,
    packed,
    unpacked,
)
from talweg._declaration import DType, Op, require_defined
from talweg._library.native_arguments import check_name_and_priority
from talweg.errors import Aborted, InternalError, InvalidArgument, Mismatch, Unsupported

NAME = "push_pull_sparse"

# A channel remembers so many tensors.
_TENSORS_MAX = 64


@dataclass(frozen=True)
class SparseTensor:
    """What ranks have alike in a call.

    The first `sparse_dimensions` of `shape` number the rows; a row has the others. The row with the
    indices (i, j) of a tensor of shape (I, J, ...) has the number i * J + j.
    """

    shape: tuple[int, ...]
    dtype: DType
    op: Op = Op.AVERAGE
    sparse_dimensions: int = 1
    factors: Factors = field(default=NO_FACTORS)

    @property
    def total_rows(self) -> int:
        total = 1
        for length in self.shape[: self.sparse_dimensions]:
            total *= length
        return total

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[self.sparse_dimensions :]

    def require(self) -> None:
        """Raises InvalidArgument, or Unsupported, if there is no such sum."""
        if self.op not in (Op.SUM, Op.AVERAGE):
            raise Unsupported(
                f"{NAME}: op is {self.op.name.lower()}; sparse tensors have sum and average: make "
                "the tensor dense for another one"
            )
        require_defined(self.dtype, self.op, NAME)
        self.factors.require(self.dtype, NAME)
        require_dimensions(_KIND_OF_TEXTS, self.shape)
        if self.total_rows > np.iinfo(np.int64).max:
            raise InvalidArgument(
                f"{NAME}: a tensor of shape {list(self.shape)} has more rows than an int64 counts"
            )

    def said(self) -> Rows:
        """Returns what ranks compare. They gather bytes, whose number may differ."""
        dimensions = "" if self.sparse_dimensions == 1 else str(self.sparse_dimensions)
        op = "sum" if self.op is Op.SUM else "avg"
        dtype = f"sparse{dimensions} {op} {self.dtype.name.lower()}"
        return Rows(dtype, self.shape, row_bytes=1)


_KIND_OF_TEXTS = Kind(NAME, 0, 0, 0)


def start(
    client: Client,
    name: str | None,
    group: Group,
    tensor: SparseTensor,
    rows: SparseRows,
    priority: int = 0,
    is_async: bool = True,
) -> JobHandle:
    """Starts the sum of the ranks' rows. The caller may change these at once.

    The handle's result is SparseRows in ascending order, each row once. `rows` may have a row more
    than once, and any order. A bf16 tensor has its values as u16. Raises InvalidArgument for a row
    that the tensor does not have.
    """
    check_name_and_priority("none" if name is None else name, priority)
    check(tensor, rows)
    channel = channel_of(client, name, group)
    job = job_of(channel, tensor, rows, priority)
    channel.submit(job, is_async)
    return JobHandle(client, 0, 0, channel.name, job=job)


def job_of(
    channel: CallChannel,
    tensor: SparseTensor,
    rows: SparseRows,
    priority: int = 0,
    call: str = NAME,
    gather: Kind = ALL_GATHER_SURVIVORS,
) -> Job:
    """Returns the job of a sum of rows that are checked. Its result is that of start().

    `call` names it in error texts, and `gather` says whether it goes on without lost ranks.
    """
    given = _Call(channel, tensor, rows, priority, call, call_site(), gather)
    return Job(channel, [given.steps])


def check(tensor: SparseTensor, rows: SparseRows) -> None:
    """Raises InvalidArgument, or Unsupported, if the rows are none of the tensor's, or if there is
    no such sum.
    """
    tensor.require()
    indices, values = rows
    if indices.ndim != 1 or values.shape != (len(indices), *tensor.row_shape):
        raise InvalidArgument(
            f"{NAME}: indices of shape {list(indices.shape)} and values of shape "
            f"{list(values.shape)}, for a tensor of shape {list(tensor.shape)}: give one index, and "
            f"values of shape {list(tensor.row_shape)}, for each row"
        )
    if indices.dtype.kind not in "iu":
        raise InvalidArgument(
            f"{NAME}: indices of dtype {indices.dtype}; they number rows: use integers"
        )
    for wrong in indices[(indices < 0) | (indices >= tensor.total_rows)][:1]:
        raise InvalidArgument(
            f"{NAME}: row {wrong} of a tensor that has {tensor.total_rows} (0 to "
            f"{tensor.total_rows - 1})"
        )


class _Call:
    """One call."""

    def __init__(
        self,
        channel: CallChannel,
        tensor: SparseTensor,
        rows: SparseRows,
        priority: int,
        call: str,
        site: CallSite | None,
        gather: Kind,
    ) -> None:
        self._channel = channel
        self._tensor = tensor
        self._said = tensor.said()
        self._priority = priority
        self._call = call
        self._site = site
        # Where ranks may join, a call goes on without joined ranks, and not without lost ones.
        self._may_join = channel.client.names_watcher is not None
        self._gather = ALL_GATHER_OF_SOME if self._may_join else gather
        self._index = index_dtype(tensor.total_rows)
        self._storage = rows.values.dtype
        own = coalesced(rows, tensor.dtype)
        own = own._replace(values=self._scaled(own.values, tensor.factors.prescale))
        # A copy, because a call that begins later may find the caller's rows changed.
        self._packed = packed([Part(own, own.row_count)], self._index)
        [part] = self._parts(self._packed[0])
        self._own = part.rows

    def steps(self) -> Steps:
        """The call's steps. Its result is the sum."""
        channel = self._channel
        goes_on = self._gather is ALL_GATHER_SURVIVORS
        if self._is_better_dealt():
            try:
                return (yield from self._deal())
            except Mismatch as mismatch:
                if not (mismatch.has_joined and self._may_join):
                    raise
                channel.begin_further_control_round()
            except Aborted:
                if not goes_on:
                    raise
                channel.has_lost_a_rank = True  # All ranks that are left have learnt it here.
        gathered = yield from self._run(self._gather, *self._packed)
        if goes_on:
            return self._sum(gathered.rows, len(gathered.ranks))
        return self._sum(gathered, channel.group.size)

    def _is_better_dealt(self) -> bool:
        channel = self._channel
        last = channel.last_sparse.get(self._said)
        return (
            last is not None
            and not channel.has_lost_a_rank
            and last.is_better_dealt(channel.group.size)
        )

    def _deal(self) -> Steps:
        """Returns the sum of the rows of all ranks. Raises Aborted if a rank is lost, and Mismatch
        if one has joined.
        """
        size = self._channel.group.size
        shares = [Part(share, share.row_count) for share in dealt(self._own, size)]
        received = yield from self._run(ALL_TO_ALL, *packed(shares, self._index))
        parts = self._parts(received)
        own = self._added(parts, size)
        given = sum(part.given for part in parts)
        self._channel.begin_further_control_round()
        sums = yield from self._run(ALL_GATHER, *packed([Part(own, given)], self._index))
        owned = self._parts(sums)
        rows = in_order([part.rows for part in owned])
        self._note(owned, rows)
        return rows

    def _run(self, kind: Kind, data: np.ndarray, part_bytes: list[int]) -> Steps:
        """Runs a collective of rows that are packed(), in one part for each rank or in one for all.
        Returns its result.
        """

        def allocate(_: Rows, counts: list[int]) -> tuple[Any, int]:
            found: np.ndarray = np.empty(sum(counts), np.uint8)
            return found, int(found.ctypes.data)

        call = Given(kind, 0, self._said, part_bytes, int(data.ctypes.data), data, allocate)
        call.call, call.site = self._call, self._site
        steps = survivors_gather.steps if kind is ALL_GATHER_SURVIVORS else one_call.steps
        return (yield from steps(self._channel, call, self._priority))

    def _sum(self, gathered: np.ndarray, ranks: int) -> SparseRows:
        parts = self._parts(gathered)
        rows = self._added(parts, ranks)
        self._note(parts, rows)
        return rows

    def _parts(self, data: np.ndarray) -> list[Part]:
        return unpacked(data, self._index, self._storage, self._tensor.row_shape)

    def _added(self, parts: Sequence[Part], ranks: int) -> SparseRows:
        tensor = self._tensor
        divisor = ranks if tensor.op is Op.AVERAGE else 1
        of = (tensor.row_shape, tensor.dtype, divisor)
        rows = added([part.rows for part in parts], *of)
        self._require_within(rows.indices)
        return rows._replace(values=self._scaled(rows.values, tensor.factors.postscale))

    def _require_within(self, ascending: np.ndarray) -> None:
        """Raises InternalError for rows that the tensor does not have: code that uses the sum does
        not look.
        """
        for wrong in (*ascending[:1], *ascending[-1:]):
            if not 0 <= wrong < self._tensor.total_rows:
                raise InternalError(
                    f"{self._channel.text_of(self._call)}: a rank gives row {wrong} of a tensor that has "
                    f"{self._tensor.total_rows}: please report this"
                )

    def _note(self, parts: Sequence[Part], rows: SparseRows) -> None:
        row_bytes = self._index.itemsize + rows.values[:1].nbytes
        given = sum(part.given for part in parts)
        last = self._channel.last_sparse
        if len(parts) < self._channel.group.size:  # Not all ranks can own rows.
            last.pop(self._said, None)
            return
        last[self._said] = Traffic(given * row_bytes, rows.row_count * row_bytes)
        if len(last) > _TENSORS_MAX:
            del last[next(iter(last))]  # The same one at every rank.

    def _scaled(self, values: np.ndarray, factor: float) -> np.ndarray:
        if factor == 1.0 or values.size == 0:
            return values
        given = np.ascontiguousarray(values)
        scaled = np.empty_like(given)
        source, target = int(given.ctypes.data), int(scaled.ctypes.data)
        self._channel.client.connection.scale(
            self._tensor.dtype, factor, source, target, given.size
        )
        return scaled


__all__ = ["NAME", "SparseRows", "SparseTensor", "check", "job_of", "start"]
