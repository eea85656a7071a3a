# SPDX-License-Identifier: Apache-2.0
"""What all collectives of a framework's module are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from talweg._client import Client
from talweg._collectives import collectives
from talweg._collectives.collectives import Given, Kind, Rows
from talweg._collectives.process_sets import Group
from talweg._collectives.words import DIMENSIONS_MAX
from talweg._declaration import DType, Op
from talweg.errors import InvalidArgument


class Framework(Protocol):
    """What the calls need of NumPy or torch."""

    def source(self, tensor: Any, copied: bool) -> Any:
        """The tensor in contiguous host memory; in memory of its own where `copied`."""

    def address(self, source: Any) -> int: ...

    def shape(self, tensor: Any) -> tuple[int, ...]: ...

    def dtype(self, tensor: Any) -> str:
        """Its name, which is the same in all frameworks."""

    def wire_dtype(self, tensor: Any) -> DType:
        """For reductions; InvalidArgument where there is none."""

    def item_bytes(self, tensor: Any) -> int: ...

    def empty(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """In contiguous host memory."""

    def dtype_named(self, dtype: Any) -> str: ...

    def reducible(self, tensor: Any, op: Op) -> Any:
        """The tensor, or its memory in a dtype that has the operation: see as_given()."""

    def as_given(self, result: Any, like: Any) -> Any:
        """The result of a reducible() tensor in the dtype that it had."""

    def given_back(self, result: Any, like: Any) -> Any:
        """A result in the place where a rank's tensor is."""

    def require_target(self, tensor: Any) -> None:
        """InvalidArgument if no result can be written into it."""

    def target(self, tensor: Any) -> Any:
        """Contiguous host memory for a result that written() then has in the tensor."""

    def written(self, tensor: Any, target: Any) -> None: ...


Shape = Callable[[list[Any]], Any]


def require_dimensions(kind: Kind, row_shape: tuple[int, ...], before: int = 0) -> None:
    """InvalidArgument for more than ranks can say; `before` are the dimensions before a row's."""
    if len(row_shape) > DIMENSIONS_MAX:
        raise InvalidArgument(
            f"{kind.name}: a tensor of {before + len(row_shape)} dimensions; it may have "
            f"{before + DIMENSIONS_MAX}: reshape it"
        )


class Family:
    """Makes calls of what a framework's tensors give."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    # ----- What each call gives -----

    def _rows(self, tensor: Any, kind: Kind) -> tuple[Rows, int]:
        """The tensor as rows, and how many."""
        shape = self._framework.shape(tensor)
        if kind in (collectives.REDUCE, collectives.SEND):
            rows, row_shape = 1, shape
        elif not shape:
            raise InvalidArgument(
                f"{kind.name}: a tensor of no dimensions has no rows: use tensor.reshape(1)"
            )
        else:
            rows, row_shape = shape[0], shape[1:]
        require_dimensions(kind, row_shape, len(shape) - len(row_shape))
        row_bytes = math.prod(row_shape) * self._framework.item_bytes(tensor)
        return Rows(self._framework.dtype(tensor), row_shape, row_bytes), rows

    def _given(
        self,
        kind: Kind,
        tensor: Any,
        part_rows: Callable[[int], list[int]],
        is_async: bool,
        root_rank: int = 0,
        allocate: Callable[[Rows, list[int]], tuple[Any, int]] | None = None,
        **reduction: Any,
    ) -> Given:
        rows, count = self._rows(tensor, kind)
        source = self._framework.source(tensor, is_async)
        return Given(
            kind,
            root_rank,
            rows,
            part_rows(count),
            self._framework.address(source),
            source,
            allocate or self._joined,
            **reduction,
        )

    def _new(self, dtype: str, shape: tuple[int, ...]) -> tuple[Any, int]:
        result = self._framework.empty(dtype, shape)
        return result, self._framework.address(result)

    def _joined(self, rows: Rows, counts: list[int]) -> tuple[Any, int]:
        return self._new(rows.dtype, (sum(counts), *rows.row_shape))

    def _go(
        self,
        is_async: bool,
        client: Client,
        name: str | None,
        group: Group,
        calls: Sequence[Given],
        priority: int,
        shape: Shape,
        timeout_s: float | None = None,
    ) -> Any:
        if is_async:
            return collectives.start(client, name, group, calls, priority, shape)
        return collectives.run(client, name, group, calls, priority, shape, timeout_s)

    def _like(
        self,
        tensors: Sequence[Any],
        many: bool,
        as_given: Callable[[Any, Any], Any] = lambda result, like: result,
    ) -> Shape:
        def shape(results: list[Any]) -> Any:
            placed = [
                self._framework.given_back(as_given(result, like), like)
                for result, like in zip(results, tensors)
            ]
            return placed if many else placed[0]

        return shape
