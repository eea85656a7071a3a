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
from talweg._collectives.family import Family
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
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "reduce_scatter")
        every = listed(tensors, "grouped_reduce_scatter")
        calls = [
            self._reduced(
                collectives.REDUCE_SCATTER,
                tensor,
                lambda rows: split_evenly(rows, group.size),
                is_async,
                op,
                factors,
                0,
                self._joined,
            )
            for tensor in every
        ]
        shape = self._like(every, many, self._framework.as_given)
        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

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
    ) -> Any:
        """Combines the ranks' tensors as push_pull() does, and returns this rank's rows of the
        result.

        The rows (along the first dimension) are split evenly. If there is a remainder, the lower
        ranks get one row more, so a rank may get none. The tensors have one shape and dtype at all
        ranks. `prescale_factor` multiplies what each rank gives, `postscale_factor` the result,
        both by talweg_scale() of talweg.h, in float32 for 16-bit floats.
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
    ) -> Handle:
        """Starts reduce_scatter() and returns its handle; the tensor may be changed at once."""
        return self._reduce_scatter(
            True,
            [tensor],
            False,
            name,
            chosen_op(op, average),
            process_set,
            Factors(prescale_factor, postscale_factor),
            priority,
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
        tensor: Any,
        root_rank: int,
        name: str | None,
        op: Op,
        process_set: ProcessSet | None,
        factors: Factors,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "reduce")
        group.require_root(root_rank, "reduce")

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            return self._new(rows.dtype, rows.row_shape) if counts else (None, 0)

        given = self._reduced(
            collectives.REDUCE,
            tensor,
            lambda rows: [rows],
            is_async,
            op,
            factors,
            root_rank,
            allocate,
        )
        shape = self._like([tensor], False, self._framework.as_given)
        return self._go(is_async, client, name, group, [given], priority, shape, timeout_s)

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
            tensor,
            root_rank,
            name,
            chosen_op(op, average),
            process_set,
            Factors(prescale_factor, postscale_factor),
            priority,
            timeout_s,
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
            tensor,
            root_rank,
            name,
            chosen_op(op, average),
            process_set,
            Factors(prescale_factor, postscale_factor),
            priority,
        )
