# SPDX-License-Identifier: Apache-2.0
"""Starts collectives for TensorFlow's operations, once their tensors are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import talweg
from talweg import _client
from talweg._client import Client, Handle, session
from talweg._collectives import adasum, numpy_rounds
from talweg._collectives.numpy_calls import COLLECTIVES
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import Factors, average_integers
from talweg._collectives.sparse_rows import SparseRows
from talweg._declaration import DType, Op, numpy_dtype
from talweg._elastic.membership import membership_of
from talweg.errors import Busy, InvalidArgument, Timeout


@dataclass(frozen=True)
class Reduction:
    """How tensors are combined, and by which ranks."""

    op: Op = Op.AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: ProcessSet | None = None
    priority: int = 0
    root_rank: int = 0
    # A rank that has entered a running job gets its own tensors as its first results.
    own_at_entry: bool = False
    is_adasum: bool = False  # Tensors are combined by Adasum; `op` has no meaning.

    @property
    def operation(self) -> str:
        if self.is_adasum:
            return "adasum"
        return "broadcast" if self.op is Op.BROADCAST else "push_pull"

    def averages_integers(self, dtype: np.dtype) -> bool:
        """Whether this is an average of integers: their sum, which average() divides."""
        return self.op is Op.AVERAGE and np.issubdtype(dtype, np.integer)

    def on_wire(self, dtype: np.dtype) -> tuple[Op, float]:
        """Returns the operation of the ranks, and the factor of its result."""
        return (Op.SUM, 1.0) if self.averages_integers(dtype) else (self.op, self.postscale)

    def average(self, sums: np.ndarray, handle: Handle, size: int) -> None:
        """Makes the sums of a round's ranks averages, in place. Its group has `size` ranks, but
        where one is lost, fewer may be in the sums.
        """
        average_integers(sums, handle.ranks_summed or size, self.postscale)


class Started(Protocol):
    """A collective that has been started."""

    def wait(self, timeout_s: float | None = None) -> list[np.ndarray]: ...

    def poll(self) -> bool: ...


@dataclass
class Own:
    """A collective that no other rank takes part in. Its results are there at once."""

    results: list[np.ndarray]

    def wait(self, timeout_s: float | None = None) -> list[np.ndarray]:
        return self.results

    def poll(self) -> bool:
        return True


@dataclass
class Pending:
    """A round that is under way."""

    handle: Handle
    at_end: Callable[[], None] = lambda: None
    # Makes arrays of the handle's result.
    shape: Callable[[Any], list[np.ndarray]] = lambda result: [result]

    def wait(self, timeout_s: float | None = None) -> list[np.ndarray]:
        """Returns the results. After Timeout the round goes on; every other error ends it."""
        try:
            result = self.handle.client.synchronize(self.handle, timeout_s)
        except Timeout:
            raise
        except Exception:
            self.at_end()
            raise
        self.at_end()
        return self.shape(result)

    def poll(self) -> bool:
        """Whether wait() would return or raise at once."""
        try:
            return self.handle.client.poll(self.handle)
        except talweg.TalwegError:  # wait() raises it.
            return True


@dataclass
class _Rows:
    """A sum of rows, and the round that finds ranks which push the whole gradient instead."""

    form: Pending
    rows: Pending
    name: str
    is_alike: bool = False

    def wait(self, timeout_s: float | None = None) -> list[np.ndarray]:
        if not self.is_alike:
            try:
                self.form.wait(timeout_s)
            except Timeout:
                raise
            except Exception as failure:
                self.rows.at_end()
                if isinstance(failure, talweg.Mismatch):
                    raise talweg.Mismatch(
                        f"'{self.name}': this rank pushes rows, and another one a whole gradient "
                        f"({failure}): give all ranks the same sparse_as_dense"
                    ) from None
                raise
            self.is_alike = True
        return self.rows.wait(timeout_s)

    def poll(self) -> bool:
        return self.rows.poll() if self.is_alike else self.form.poll()


def keeps_own(client: Client, name: str | None, how: Reduction) -> bool:
    """Whether this rank's own tensor is the result of this execution."""
    return how.own_at_entry and name is not None and membership_of(client).keeps_own(name)


def start_reduction(array: np.ndarray, name: str | None, how: Reduction) -> Started:
    """Starts a push_pull, a broadcast or an Adasum. Its result is a new array.

    A name may be used again for another dtype or length. Raises InvalidArgument while a round of
    that name is open.
    """
    client = _client.current()
    if keeps_own(client, name, how):
        return Own([array.copy()])
    group = Group(client, how.process_set, how.operation)
    if how.is_adasum:
        return _start_adasum(client, array, name, group, how)
    op, postscale = how.on_wire(array.dtype)
    out = array.copy() if op is Op.BROADCAST else np.empty(array.shape, array.dtype)
    factors = Factors(how.prescale, postscale)
    try:
        handle = numpy_rounds.start(
            array,
            out,
            op,
            name,
            how.priority,
            how.root_rank,
            how.process_set,
            factors,
        )
    except Busy as busy:
        raise InvalidArgument(f"{how.operation}: {busy}") from None
    return _averaged(Pending(handle), array.dtype, how, group.size)


def _averaged(pending: Pending, dtype: np.dtype, how: Reduction, size: int) -> Pending:
    """Has `pending` return averages, if it is the sum of an average of integers."""

    def shape(result: np.ndarray) -> list[np.ndarray]:
        how.average(result, pending.handle, size)
        return [result]

    if how.averages_integers(dtype):
        pending.shape = shape
    return pending


def _start_held(
    name: str | None,
    process_set: ProcessSet | None,
    start: Callable[[], Handle],
    shape: Callable[[Any], list[np.ndarray]] = lambda result: [result],
) -> Pending:
    """Starts another collective; raises InvalidArgument while one of that name is open."""
    if name is None:
        return Pending(start(), shape=shape)
    life = session.current()
    held = name if process_set is None else f"{name}{process_set.suffix}"
    life.hold(held)
    try:
        return Pending(start(), lambda: life.release(held), shape)
    except BaseException:
        life.release(held)
        raise


def start_all_gather(
    array: np.ndarray, name: str | None, how: Reduction, of_some: bool = False
) -> Started:
    """Starts an all_gather. With `of_some` it goes on without ranks that have joined."""
    if keeps_own(_client.current(), name, how):
        return Own([array.copy()])
    gather = COLLECTIVES.all_gather_of_some_async if of_some else talweg.all_gather_async
    return _start_held(
        name,
        how.process_set,
        lambda: gather(array, name, how.process_set, priority=how.priority),
    )


# What ranks that push rows declare under the name that the whole gradient would have.
_FORM: np.ndarray = np.ones(1, np.uint8)


def _start_form(client: Client, whole: str, how: Reduction) -> Pending | None:
    """Starts the round that finds ranks which push the whole gradient, under its name. None: all
    ranks have done so before. Ranks that enter later do not: the others have no such round then.
    """
    group = Group(client, how.process_set, how.operation)
    known = client.tensors.known(group.name_of(whole))
    is_done = known is not None and known.declaration.dtype is DType.U8
    if is_done or membership_of(client).began_apart:
        return None
    out, of = np.empty_like(_FORM), (how.priority, 0, how.process_set)
    return Pending(numpy_rounds.start(_FORM, out, Op.MAX, whole, *of))


def start_sparse_sum(
    values: np.ndarray,
    indices: np.ndarray,
    rows: np.ndarray,
    name: str | None,
    how: Reduction,
    whole: str | None = None,
) -> Started:
    """Starts the sum of a tensor of which each rank gives some rows; `rows` says how many it has.
    The results are the sum's values and indices. It goes on without ranks that have joined.

    Raises Mismatch if another rank pushes a tensor named `whole` instead.
    """
    client = _client.current()
    if keeps_own(client, name, how):
        return Own([values.copy(), indices.copy()])
    form = None if whole is None else _start_form(client, whole, how)

    def shape(result: SparseRows) -> list[np.ndarray]:
        return [result.values, result.indices.astype(indices.dtype)]

    summed = _start_held(
        name,
        how.process_set,
        lambda: talweg.push_pull_sparse_async(
            indices,
            values,
            int(rows),
            name,
            how.op,
            process_set=how.process_set,
            prescale_factor=how.prescale,
            postscale_factor=how.postscale,
            priority=how.priority,
        ),
        shape,
    )
    return summed if form is None else _Rows(form, summed, str(whole))


def start_reduce_scatter(array: np.ndarray, name: str | None, how: Reduction) -> Pending:
    group = Group(_client.current(), how.process_set, "reduce_scatter")
    op, postscale = how.on_wire(array.dtype)
    pending = _start_held(
        name,
        how.process_set,
        lambda: talweg.reduce_scatter_async(
            array,
            name,
            op,
            process_set=how.process_set,
            prescale_factor=how.prescale,
            postscale_factor=postscale,
            priority=how.priority,
        ),
    )
    return _averaged(pending, array.dtype, how, group.size)


def start_all_to_all(
    array: np.ndarray, splits: list[int] | None, name: str | None, process_set: ProcessSet | None
) -> Pending:
    """Starts an all_to_all. Its results are the rows, and int32[ranks]: how many from each."""

    def shape(result: Any) -> list[np.ndarray]:
        rows, counts = result
        return [rows, np.array(counts, np.int32)]

    return _start_held(
        name,
        process_set,
        lambda: talweg.all_to_all_async(array, splits, name, process_set),
        shape,
    )


def _start_adasum(
    client: Client, array: np.ndarray, name: str | None, group: Group, how: Reduction
) -> Pending:
    wide = adasum.dtype_for(numpy_dtype(array.dtype), how.operation)
    own = array.astype(wide).reshape(-1)
    own *= how.prescale

    def start() -> Handle:
        return adasum.start(client, name, group, own, array.shape, priority=how.priority)

    def shape(result: np.ndarray) -> list[np.ndarray]:
        result *= how.postscale
        return [result.reshape(array.shape).astype(array.dtype)]

    return _start_held(name, how.process_set, start, shape)
