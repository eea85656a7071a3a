# SPDX-License-Identifier: Apache-2.0
"""What all collectives of a framework's module share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from talweg._client import Client
from talweg._collectives import collectives
from talweg._collectives.collectives import Given, Kind, Rows
from talweg._collectives.process_sets import Group
from talweg._collectives.words import DIMENSIONS_MAX
from talweg._declaration import DType, Op
from talweg.errors import InvalidArgument


class Framework(Protocol):
    """The operations of NumPy or torch that the calls need."""

    def source(self, tensor: Any, copied: bool) -> Any:
        """Returns the tensor in contiguous host memory; a copy if `copied`."""

    def address(self, source: Any) -> int: ...

    def shape(self, tensor: Any) -> tuple[int, ...]: ...

    def dtype(self, tensor: Any) -> str:
        """Returns the name of the tensor's dtype, which is the same in all frameworks."""

    def wire_dtype(self, tensor: Any) -> DType:
        """Returns the wire dtype for reductions. Raises InvalidArgument if there is none."""

    def item_bytes(self, tensor: Any) -> int: ...

    def empty(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """Returns a new tensor in contiguous host memory."""

    def dtype_named(self, dtype: Any) -> str: ...

    def reducible(self, tensor: Any, op: Op) -> Any:
        """Returns the tensor, or its memory in a dtype that has the operation: see as_given()."""

    def as_given(self, result: Any, like: Any) -> Any:
        """Returns the result of a reducible() tensor in the tensor's own dtype."""

    def given_back(self, result: Any, like: Any) -> Any:
        """Returns the result on the device of this rank's tensor."""

    def require_target(self, tensor: Any) -> None:
        """Raises InvalidArgument if no result can be written into the tensor."""

    def target(self, tensor: Any) -> Any:
        """Returns contiguous host memory for a result; written() then brings it into the tensor."""

    def written(self, tensor: Any, target: Any) -> None: ...


Shape = Callable[[list[Any]], Any]


class Into(NamedTuple):
    """How a result comes into a tensor of the caller's."""

    allocate: Callable[[Rows, list[int]], tuple[Any, int]]  # Given.allocate.
    finish: Shape  # Returns the caller's tensor, when the result is there.


def require_dimensions(kind: Kind, row_shape: tuple[int, ...], before: int = 0) -> None:
    """Raises InvalidArgument if a tensor has more dimensions than ranks can say. `before` is the
    number of dimensions before those of a row.
    """
    if len(row_shape) > DIMENSIONS_MAX:
        raise InvalidArgument(
            f"{kind.name}: a tensor of {before + len(row_shape)} dimensions; it may have "
            f"{before + DIMENSIONS_MAX}: reshape it"
        )


class Family:
    """Makes calls from a framework's tensors."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    # ----- What each call gives -----

    def _rows(self, tensor: Any, kind: Kind) -> tuple[Rows, int]:
        """Returns the tensor as rows, and their number."""
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

    def _into(
        self, output: Any, shown: Any, operation: str, wanted: tuple[str, tuple[int, ...]] | None
    ) -> Into:
        """Has a result written into `output`.

        `shown` is the output's memory as the call's rows lie there. Its dtype and shape must be
        `wanted`, where these are known before the call.
        """
        framework = self._framework
        framework.require_target(output)
        target = framework.target(shown)

        def require(dtype: str, shape: tuple[int, ...]) -> None:
            if framework.shape(shown) != shape or framework.dtype(shown) != dtype:
                raise InvalidArgument(
                    f"{operation}: the output is {framework.dtype(shown)}"
                    f"{list(framework.shape(shown))}; the result's rows need {dtype}{list(shape)}"
                )

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            require(rows.dtype, (sum(counts), *rows.row_shape))
            return target, framework.address(target)

        def finish(results: list[Any]) -> Any:
            framework.written(shown, target)
            return output

        if wanted is not None:
            require(*wanted)
        return Into(allocate, finish)

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
        title: str = "",
    ) -> Any:
        if is_async and timeout_s is not None:
            raise InvalidArgument(
                "timeout_s is for calls that block: pass it to synchronize(), which waits for this one"
            )
        if is_async:
            return collectives.start(client, name, group, calls, priority, shape, title=title)
        return collectives.run(client, name, group, calls, priority, shape, timeout_s, title)

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
