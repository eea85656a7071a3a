# SPDX-License-Identifier: Apache-2.0
"""all_gather, reduce_scatter and their like, as a framework's module offers them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from talweg import _client, _collectives
from talweg._arguments import chosen_op
from talweg._client import Client, Handle
from talweg._collectives import Given, Kind, Rows, split_evenly
from talweg._declaration import DType, Op, require_defined
from talweg._process_sets import Group, ProcessSet
from talweg._scaling import Factors
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

    def given_back(self, result: Any, like: Any) -> Any:
        """A result in the place where a rank's tensor is."""

    def require_target(self, tensor: Any) -> None:
        """InvalidArgument if no result can be written into it."""

    def target(self, tensor: Any) -> Any:
        """Contiguous host memory for a result that written() then has in the tensor."""

    def written(self, tensor: Any, target: Any) -> None: ...


_Shape = Callable[[list[Any]], Any]


class Collectives:
    """The calls of one framework's module."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    # ----- What each call gives -----

    def _rows(self, tensor: Any, kind: Kind) -> tuple[Rows, int]:
        """The tensor as rows, and how many."""
        shape = self._framework.shape(tensor)
        if kind in (_collectives.REDUCE, _collectives.SEND):
            rows, row_shape = 1, shape
        elif not shape:
            raise InvalidArgument(
                f"{kind.name}: a tensor of no dimensions has no rows: use tensor.reshape(1)"
            )
        else:
            rows, row_shape = shape[0], shape[1:]
        if len(row_shape) > 11:
            raise InvalidArgument(
                f"{kind.name}: a tensor of {len(shape)} dimensions; it may have 11: reshape it"
            )
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
        shape: _Shape,
        timeout_s: float | None = None,
    ) -> Any:
        if is_async:
            return _collectives.start(client, name, group, calls, priority, shape)
        return _collectives.run(client, name, group, calls, priority, shape, timeout_s)

    def _like(self, tensors: Sequence[Any], many: bool) -> _Shape:
        def shape(results: list[Any]) -> Any:
            placed = [
                self._framework.given_back(result, like) for result, like in zip(results, tensors)
            ]
            return placed if many else placed[0]

        return shape

    # ----- all_gather -----

    def _all_gather(
        self,
        is_async: bool,
        tensors: Sequence[Any],
        many: bool,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "all_gather")
        calls = [
            self._given(_collectives.ALL_GATHER, tensor, lambda rows: [rows], is_async)
            for tensor in tensors
        ]
        shape = self._like(tensors, many)
        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

    def all_gather(
        self,
        tensor: Any,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """Returns the tensors of all ranks, joined along the first dimension, in rank order.

        Their first dimensions may differ, and may be 0; dtypes and other dimensions are alike, or
        Mismatch names two ranks. Any dtype. Calls without a name belong together by their order,
        which is the same at every rank of the group.
        """
        return self._all_gather(False, [tensor], False, name, process_set, priority, timeout_s)

    def all_gather_async(
        self,
        tensor: Any,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts all_gather() and returns its handle; the tensor may be changed at once."""
        return self._all_gather(True, [tensor], False, name, process_set, priority)

    def grouped_all_gather(
        self,
        tensors: Sequence[Any],
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """all_gather() of many tensors; returns a list of results."""
        return self._all_gather(False, tensors, True, name, process_set, priority, timeout_s)

    def grouped_all_gather_async(
        self,
        tensors: Sequence[Any],
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts grouped_all_gather(); the tensors have one handle."""
        return self._all_gather(True, tensors, True, name, process_set, priority)

    def _all_gather_into(
        self,
        is_async: bool,
        output: Any,
        tensor: Any,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client, framework = _client.current(), self._framework
        group = Group(client, process_set, "all_gather_into")
        rows, count = self._rows(tensor, _collectives.ALL_GATHER_INTO)
        wanted = (count * group.size, *rows.row_shape)
        framework.require_target(output)
        if framework.shape(output) != wanted or framework.dtype(output) != rows.dtype:
            raise InvalidArgument(
                f"all_gather_into: the output is {framework.dtype(output)}"
                f"{list(framework.shape(output))}; {group.size} ranks with {rows.dtype}"
                f"{[count, *rows.row_shape]} need {rows.dtype}{list(wanted)}"
            )
        target = framework.target(output)
        given = self._given(
            _collectives.ALL_GATHER_INTO,
            tensor,
            lambda rows: [rows],
            is_async,
            allocate=lambda rows, counts: (target, framework.address(target)),
        )

        def shape(results: list[Any]) -> Any:
            framework.written(output, target)
            return output

        return self._go(is_async, client, name, group, [given], priority, shape, timeout_s)

    def all_gather_into(
        self,
        output: Any,
        tensor: Any,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """all_gather() of tensors of one shape, into `output`, which is also returned.

        Its first dimension is the tensor's times the number of ranks.
        """
        return self._all_gather_into(False, output, tensor, name, process_set, priority, timeout_s)

    def all_gather_into_async(
        self,
        output: Any,
        tensor: Any,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts all_gather_into(); `output` stays unread and unwritten until synchronize()."""
        return self._all_gather_into(True, output, tensor, name, process_set, priority)

    # ----- Reductions -----

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
        tensors: Sequence[Any],
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
        calls = [
            self._reduced(
                _collectives.REDUCE_SCATTER,
                tensor,
                lambda rows: split_evenly(rows, group.size),
                is_async,
                op,
                factors,
                0,
                self._joined,
            )
            for tensor in tensors
        ]
        shape = self._like(tensors, many)
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
        """Combines the ranks' tensors as push_pull() does, and returns this rank's rows of it.

        The rows (along the first dimension) are split evenly; where a remainder is left the lower
        ranks have one more. So a rank may get none. The tensors have one shape and dtype at all
        ranks. `prescale_factor` multiplies what each rank gives and `postscale_factor` the result:
        talweg_scale() in talweg.h, in float32 for 16-bit floats.
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
        tensors: Sequence[Any],
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
        """reduce_scatter() of many tensors; returns a list of results."""
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
        tensors: Sequence[Any],
        name: str | None = None,
        op: Op | None = None,
        *,
        average: bool = True,
        process_set: ProcessSet | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        priority: int = 0,
    ) -> Handle:
        """Starts grouped_reduce_scatter(); the tensors have one handle."""
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
            _collectives.REDUCE,
            tensor,
            lambda rows: [rows],
            is_async,
            op,
            factors,
            root_rank,
            allocate,
        )
        shape = self._like([tensor], False)
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

        `root_rank` is a number in the job. Factors: as reduce_scatter().
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

    # ----- all_to_all -----

    def _all_to_all(
        self,
        is_async: bool,
        tensors: Sequence[Any],
        splits: Sequence[Any],
        many: bool,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "all_to_all")
        if len(splits) != len(tensors):
            raise InvalidArgument(
                f"all_to_all: {len(splits)} lists of splits for {len(tensors)} tensors: give one "
                "for each, or None"
            )

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            result, address = self._joined(rows, counts)
            return (result, counts), address

        def call(tensor: Any, splits: Any) -> Given:
            def part_rows(rows: int) -> list[int]:
                return _splits(splits, rows, group.size, "all_to_all")

            kind = _collectives.ALL_TO_ALL
            return self._given(kind, tensor, part_rows, is_async, allocate=allocate)

        calls = [call(tensor, each) for tensor, each in zip(tensors, splits)]

        def shape(results: list[Any]) -> Any:
            placed = [
                (self._framework.given_back(result, like), counts)
                for (result, counts), like in zip(results, tensors)
            ]
            return placed if many else placed[0]

        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

    def all_to_all(
        self,
        tensor: Any,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> tuple[Any, list[int]]:
        """Sends rows to every rank, and gets some from every rank.

        The first `splits[0]` rows go to the group's first rank, the next `splits[1]` to its second,
        and so on; without splits the rows are split evenly, which they must allow. Returns what the
        ranks sent here, joined in rank order, and how many rows came from each.
        """
        return self._all_to_all(
            False, [tensor], [splits], False, name, process_set, priority, timeout_s
        )

    def all_to_all_async(
        self,
        tensor: Any,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts all_to_all() and returns its handle; the tensor may be changed at once."""
        return self._all_to_all(True, [tensor], [splits], False, name, process_set, priority)

    def grouped_all_to_all(
        self,
        tensors: Sequence[Any],
        splits: Sequence[Any] | None = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> list[tuple[Any, list[int]]]:
        """all_to_all() of many tensors, with one list of splits for each; a list of results."""
        return self._all_to_all(
            False,
            tensors,
            splits or [None] * len(tensors),
            True,
            name,
            process_set,
            priority,
            timeout_s,
        )

    def grouped_all_to_all_async(
        self,
        tensors: Sequence[Any],
        splits: Sequence[Any] | None = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts grouped_all_to_all(); the tensors have one handle."""
        return self._all_to_all(
            True, tensors, splits or [None] * len(tensors), True, name, process_set, priority
        )

    # ----- gather and scatter -----

    def _gather(
        self,
        is_async: bool,
        tensor: Any,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "gather")
        group.require_root(root_rank, "gather")

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            return self._joined(rows, counts) if counts else (None, 0)

        given = self._given(
            _collectives.GATHER, tensor, lambda rows: [rows], is_async, root_rank, allocate
        )
        shape = self._like([tensor], False)
        return self._go(is_async, client, name, group, [given], priority, shape, timeout_s)

    def gather(
        self,
        tensor: Any,
        root_rank: int = 0,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """all_gather() whose result the root gets alone; the others get None."""
        return self._gather(False, tensor, root_rank, name, process_set, priority, timeout_s)

    def gather_async(
        self,
        tensor: Any,
        root_rank: int = 0,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts gather() and returns its handle; the tensor may be changed at once."""
        return self._gather(True, tensor, root_rank, name, process_set, priority)

    def _scatter(
        self,
        is_async: bool,
        tensor: Any,
        root_rank: int,
        splits: Any,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "scatter")
        group.require_root(root_rank, "scatter")
        if client.rank == root_rank:
            if tensor is None:
                raise InvalidArgument("scatter: the root has no tensor: only the others pass None")

            def part_rows(rows: int) -> list[int]:
                if splits is None:
                    return split_evenly(rows, group.size)
                return _splits(splits, rows, group.size, "scatter")

            given = self._given(_collectives.SCATTER, tensor, part_rows, is_async, root_rank)
        else:
            given = Given(_collectives.SCATTER, root_rank, None, [], 0, None, self._joined)
        shape = self._like([tensor], False)
        return self._go(is_async, client, name, group, [given], priority, shape, timeout_s)

    def scatter(
        self,
        tensor: Any = None,
        root_rank: int = 0,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """Gives each rank some rows of the root's tensor: evenly, the lower ranks the remainder.

        With `splits`, which the root gives: so many rows to each rank. The others' tensor is not
        looked at, but that a torch result goes to its device; it may be None.
        """
        return self._scatter(
            False, tensor, root_rank, splits, name, process_set, priority, timeout_s
        )

    def scatter_async(
        self,
        tensor: Any = None,
        root_rank: int = 0,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts scatter() and returns its handle; the tensor may be changed at once."""
        return self._scatter(True, tensor, root_rank, splits, name, process_set, priority)

    # ----- Between two ranks -----

    def _pair(
        self, operation: str, src: int, dst: int, name: str | None
    ) -> tuple[Client, Group, str]:
        client = _client.current()
        peer = dst if operation == "send" else src
        if peer == client.rank or not 0 <= peer < client.size:
            raise InvalidArgument(
                f"{operation}: rank {peer} is {'this one' if peer == client.rank else 'none'}; "
                f"give another of the job's {client.size} ranks"
            )
        group = Group(client, ProcessSet([src, dst]), operation)
        return client, group, f"{name or 'talweg.send'}.{src}.{dst}"

    def _send(
        self,
        is_async: bool,
        tensor: Any,
        dst: int,
        name: str | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client, group, name = self._pair("send", _client.current().rank, dst, name)
        given = self._given(
            _collectives.SEND,
            tensor,
            lambda rows: [rows],
            is_async,
            client.rank,
            lambda rows, counts: self._new(rows.dtype, rows.row_shape),
        )
        return self._go(
            is_async, client, name, group, [given], priority, lambda results: None, timeout_s
        )

    def send(
        self,
        tensor: Any,
        dst: int,
        name: str | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Sends the tensor to rank `dst`, which calls recv(). Returns when it has been taken."""
        self._send(False, tensor, dst, name, priority, timeout_s)

    def send_async(
        self, tensor: Any, dst: int, name: str | None = None, *, priority: int = 0
    ) -> Handle:
        """Starts send() and returns its handle; the tensor may be changed at once."""
        return self._send(True, tensor, dst, name, priority)

    def _recv(
        self,
        is_async: bool,
        tensor_or_shape: Any,
        src: int,
        dtype: Any,
        name: str | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        framework = self._framework
        client, group, name = self._pair("recv", src, _client.current().rank, name)
        wanted: Rows | None = None
        fill: Any = None
        if tensor_or_shape is not None and isinstance(tensor_or_shape, (tuple, list)):
            if dtype is None:
                raise InvalidArgument(
                    "recv: a shape needs a dtype: pass dtype=..., or None for whatever comes"
                )
            probe = framework.empty(framework.dtype_named(dtype), tuple(tensor_or_shape))
            wanted, _ = self._rows(probe, _collectives.SEND)
        elif tensor_or_shape is not None:
            framework.require_target(tensor_or_shape)
            wanted, _ = self._rows(tensor_or_shape, _collectives.SEND)
            fill = framework.target(tensor_or_shape)

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            if fill is not None:
                return fill, framework.address(fill)
            return self._new(rows.dtype, rows.row_shape)

        def shape(results: list[Any]) -> Any:
            if fill is None:
                return results[0]
            framework.written(tensor_or_shape, fill)
            return tensor_or_shape

        given = Given(_collectives.SEND, src, wanted, [], 0, None, allocate)
        return self._go(is_async, client, name, group, [given], priority, shape, timeout_s)

    def recv(
        self,
        tensor_or_shape: Any,
        src: int,
        dtype: Any = None,
        name: str | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """Returns what rank `src` sends with send().

        It is written into a tensor that is given; with a shape and a dtype it is a new one; with
        None a new one of whatever shape and dtype is sent. Mismatch where they differ.
        """
        return self._recv(False, tensor_or_shape, src, dtype, name, priority, timeout_s)

    def recv_async(
        self,
        tensor_or_shape: Any,
        src: int,
        dtype: Any = None,
        name: str | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts recv() and returns its handle."""
        return self._recv(True, tensor_or_shape, src, dtype, name, priority)


def check_reduction(dtype: DType, op: Op, operation: str) -> None:
    """InvalidArgument for what no reduction can be of."""
    if op is Op.BROADCAST:
        raise InvalidArgument(f"{operation}: op is Op.BROADCAST; it must combine: use Op.SUM")
    require_defined(dtype, op, operation)


def _splits(given: Any, rows: int, size: int, operation: str) -> list[int]:
    if given is None:
        if rows % size != 0:
            raise InvalidArgument(
                f"{operation}: {rows} rows do not divide among {size} ranks: pass splits=[...]"
            )
        return split_evenly(rows, size)
    splits = [int(count) for count in given]
    if len(splits) != size or min(splits) < 0 or sum(splits) != rows:
        raise InvalidArgument(
            f"{operation}: splits is {splits}; it must be {size} numbers of 0 or more, one for "
            f"each rank, that add up to the tensor's {rows} rows"
        )
    return splits
