# SPDX-License-Identifier: Apache-2.0
"""reduce_scatter and reduce, as a framework's module offers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from talweg import _client
from talweg._arguments import chosen_op, listed
from talweg._client import Handle
from talweg._collectives import collectives
from talweg._collectives.collectives import Given, Kind, Rows, split_evenly
from talweg._collectives.family import Family, Into
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import Factors
from talweg._declaration import DType, Op, require_defined
from talweg.errors import InvalidArgument


def check_reduction(dtype: DType, op: Op, operation: str) -> None:
    """Raises InvalidArgument if there is no such reduction."""
    if op is Op.BROADCAST:
        raise InvalidArgument(f"{operation}: op is Op.BROADCAST; it must combine: use Op.SUM")
    require_defined(dtype, op, operation)


class Reductions(Family):
    """The calls that combine the ranks' tensors."""

    def _reduced(
        self,
        kind: Kind,
        tensor: Any,
        part_rows: Callable[[int], list[int]],
        is_async: bool,
        op: Op,
        factors: Factors,
        root_rank: int,
        allocate: Callable[[Rows, list[int]], tuple[Any, int]],
    ) -> Given:
        self._framework.shape(tensor)  # Raises InvalidArgument if it is no tensor.
        tensor = self._framework.reducible(tensor, op)
        dtype = self._framework.wire_dtype(tensor)
        check_reduction(dtype, op, kind.name)
        factors.require(dtype, kind.name)
        return self._given(
            kind,
            tensor,
            part_rows,
            is_async,
            root_rank,
            allocate,
            op=op,
            dtype=dtype,
            factors=factors,
        )

    def _reduce_scatter(
        self,
        is_async: bool,
        tensors: Iterable[Any],
        many: bool,
        name: str | None,
        op: Op,
        process_set: ProcessSet | None,
        factors: Factors,
        priority: int,
        timeout_s: float | None = None,
        out: Any = None,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "reduce_scatter")
        every = listed(tensors, "grouped_reduce_scatter")
        into = None if out is None else self._reduced_into(out, every[0], op, group)
        calls = [
            self._reduced(
                collectives.REDUCE_SCATTER,
                tensor,
                lambda rows: split_evenly(rows, group.size),
                is_async,
                op,
                factors,
                0,
                self._joined if into is None else into.allocate,
            )
            for tensor in every
        ]
        shape = self._like(every, many, self._framework.as_given)
        if into is not None:
            shape = into.finish
        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

    def _reduced_into(self, out: Any, tensor: Any, op: Op, group: Group) -> Into:
        """Does the same as _into(), for reduce_scatter()."""
        framework, operation = self._framework, collectives.REDUCE_SCATTER.name
        framework.require_target(out)
        given = framework.reducible(tensor, op)
        rows, count = self._rows(given, collectives.REDUCE_SCATTER)
        share = split_evenly(count, group.size)[group.place]
        wanted = (rows.dtype, (share, *rows.row_shape))
        return self._into(out, framework.reducible(out, op), operation, wanted)

    def reduce_scatter(
        self,
        tensor: Any,
        name: str | None = None,
        op: Op | None = None,
        *,
        average: bool = True,
        process_set: ProcessSet | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        priority: int = 0,
        timeout_s: float | None = None,
        out: Any = None,
    ) -> Any:
        """Combines the ranks' tensors as push_pull() does, and returns this rank's rows of the
        result.

        The rows (along the first dimension) are split evenly. If there is a remainder, the lower
        ranks get one row more, so a rank may get none. The tensors have one shape and dtype at all
        ranks. `prescale_factor` multiplies what each rank gives, `postscale_factor` the result,
        both by talweg_scale() of talweg.h, in float32 for 16-bit floats. The result goes into
        `out`, if given, which is this rank's rows and lies apart from the tensor.
        """
        return self._reduce_scatter(
            False,
            [tensor],
            False,
            name,
            chosen_op(op, average),
            process_set,
            Factors(prescale_factor, postscale_factor),
            priority,
            timeout_s,
            out,
        )

    def reduce_scatter_async(
        self,
        tensor: Any,
        name: str | None = None,
        op: Op | None = None,
        *,
        average: bool = True,
        process_set: ProcessSet | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        priority: int = 0,
        out: Any = None,
    ) -> Handle:
        """Starts reduce_scatter() and returns its handle; the tensor may be changed at once. Do not
        read or write `out` before synchronize().
        """
        return self._reduce_scatter(
            True,
            [tensor],
            False,
            name,
            chosen_op(op, average),
            process_set,
            Factors(prescale_factor, postscale_factor),
            priority,
            None,
            out,
        )

    def grouped_reduce_scatter(
        self,
        tensors: Iterable[Any],
        name: str | None = None,
        op: Op | None = None,
        *,
        average: bool = True,
        process_set: ProcessSet | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Runs reduce_scatter() of many tensors; returns a list of results."""
        return self._reduce_scatter(
            False,
            tensors,
            True,
            name,
            chosen_op(op, average),
            process_set,
            Factors(prescale_factor, postscale_factor),
            priority,
            timeout_s,
        )

    def grouped_reduce_scatter_async(
        self,
        tensors: Iterable[Any],
        name: str | None = None,
        op: Op | None = None,
        *,
        average: bool = True,
        process_set: ProcessSet | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        priority: int = 0,
    ) -> Handle:
        """Starts grouped_reduce_scatter(). Returns one handle for all tensors."""
        return self._reduce_scatter(
            True,
            tensors,
            True,
            name,
            chosen_op(op, average),
            process_set,
            Factors(prescale_factor, postscale_factor),
            priority,
        )

    def _reduce(
        self,
        is_async: bool,
        tensors: Iterable[Any],
        many: bool,
        root_rank: int,
        name: str | None,
        op: Op | None = None,
        *,
        average: bool = True,
        process_set: ProcessSet | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        client, operation = _client.current(), chosen_op(op, average)
        group = Group(client, process_set, "reduce")
        group.require_root(root_rank, "reduce")
        factors = Factors(prescale_factor, postscale_factor)
        every = listed(tensors, "grouped_reduce")

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            return self._new(rows.dtype, rows.row_shape) if counts else (None, 0)

        calls = [
            self._reduced(
                collectives.REDUCE,
                tensor,
                lambda rows: [rows],
                is_async,
                operation,
                factors,
                root_rank,
                allocate,
            )
            for tensor in every
        ]
        shape = self._like(every, many, self._framework.as_given)
        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

    def reduce(
        self,
        tensor: Any,
        root_rank: int = 0,
        name: str | None = None,
        op: Op | None = None,
        *,
        average: bool = True,
        process_set: ProcessSet | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """Combines the ranks' tensors as push_pull() does. The root gets the result, others None.

        `root_rank` is a rank of the job. Factors are as for reduce_scatter().
        """
        return self._reduce(
            False,
            [tensor],
            False,
            root_rank,
            name,
            op,
            average=average,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            priority=priority,
            timeout_s=timeout_s,
        )

    def reduce_async(
        self,
        tensor: Any,
        root_rank: int = 0,
        name: str | None = None,
        op: Op | None = None,
        *,
        average: bool = True,
        process_set: ProcessSet | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        priority: int = 0,
    ) -> Handle:
        """Starts reduce() and returns its handle; the tensor may be changed at once."""
        return self._reduce(
            True,
            [tensor],
            False,
            root_rank,
            name,
            op,
            average=average,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            priority=priority,
        )
