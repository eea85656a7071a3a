# SPDX-License-Identifier: Apache-2.0
"""all_gather, reduce_scatter and their like, as a framework's module offers them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from talweg import _client
from talweg._arguments import listed
from talweg._client import Client, Handle
from talweg._collectives import collectives
from talweg._collectives.collectives import Given, Kind, Rows, split_evenly
from talweg._collectives.family import require_dimensions
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.reduction_calls import Reductions
from talweg._library.native_arguments import check_name_and_priority, whole, whole_numbers
from talweg.errors import InvalidArgument


class Collectives(Reductions):
    """The calls of one framework's module."""

    # ----- all_gather -----

    def _all_gather(
        self,
        is_async: bool,
        tensors: Iterable[Any],
        many: bool,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
        kind: Kind = collectives.ALL_GATHER,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "all_gather")
        every = listed(tensors, "grouped_all_gather")
        calls = [self._given(kind, tensor, lambda rows: [rows], is_async) for tensor in every]
        shape = self._like(every, many)
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

        The first dimensions may differ, and may be 0. Other dimensions and dtypes must be alike;
        otherwise Mismatch names two ranks. Takes any dtype. Calls without a name are matched by
        their order, which must be the same at every rank of the group.
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

    def all_gather_of_some_async(
        self,
        tensor: Any,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Does the same as all_gather_async(), but goes on without joined ranks (hvd.join())."""
        kind = collectives.ALL_GATHER_OF_SOME
        return self._all_gather(True, [tensor], False, name, process_set, priority, None, kind)

    def grouped_all_gather(
        self,
        tensors: Iterable[Any],
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Runs all_gather() of many tensors; returns a list of results."""
        return self._all_gather(False, tensors, True, name, process_set, priority, timeout_s)

    def grouped_all_gather_async(
        self,
        tensors: Iterable[Any],
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts grouped_all_gather(). Returns one handle for all tensors."""
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
        rows, count = self._rows(tensor, collectives.ALL_GATHER_INTO)
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
            collectives.ALL_GATHER_INTO,
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
        """Runs all_gather() of tensors of one shape, into `output`, and returns `output`.

        The first dimension of `output` is the tensor's times the number of ranks.
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
        """Starts all_gather_into(). Do not read or write `output` before synchronize()."""
        return self._all_gather_into(True, output, tensor, name, process_set, priority)

    # ----- all_to_all -----

    def _all_to_all(
        self,
        is_async: bool,
        tensors: Iterable[Any],
        splits: Sequence[Any] | None,
        many: bool,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "all_to_all")
        every = listed(tensors, "grouped_all_to_all")
        splits_of = listed(splits or [None] * len(every), "grouped_all_to_all: splits")
        if len(splits_of) != len(every):
            raise InvalidArgument(
                f"all_to_all: {len(splits_of)} lists of splits for {len(every)} tensors: give one "
                "for each, or None"
            )

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            result, address = self._joined(rows, counts)
            return (result, counts), address

        def call(tensor: Any, splits: Any) -> Given:
            def part_rows(rows: int) -> list[int]:
                return _splits(splits, rows, group.size, "all_to_all")

            kind = collectives.ALL_TO_ALL
            return self._given(kind, tensor, part_rows, is_async, allocate=allocate)

        calls = [call(tensor, each) for tensor, each in zip(every, splits_of)]

        def shape(results: list[Any]) -> Any:
            placed = [
                (self._framework.given_back(result, like), counts)
                for (result, counts), like in zip(results, every)
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
        """Sends rows to every rank, and gets rows from every rank.

        The first `splits[0]` rows go to the group's first rank, the next `splits[1]` to its second,
        and so on. Without `splits` the rows are split evenly; their number must allow that. Returns
        the rows from all ranks, joined in rank order, and how many rows came from each rank.
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
        tensors: Iterable[Any],
        splits: Sequence[Any] | None = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> list[tuple[Any, list[int]]]:
        """Runs all_to_all() of many tensors, with one list of splits each; returns a list of
        results.
        """
        return self._all_to_all(
            False,
            tensors,
            splits,
            True,
            name,
            process_set,
            priority,
            timeout_s,
        )

    def grouped_all_to_all_async(
        self,
        tensors: Iterable[Any],
        splits: Sequence[Any] | None = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts grouped_all_to_all(). Returns one handle for all tensors."""
        return self._all_to_all(True, tensors, splits, True, name, process_set, priority)

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
            collectives.GATHER, tensor, lambda rows: [rows], is_async, root_rank, allocate
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
        """Runs all_gather(), but only the root gets the result. The others get None."""
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

            given = self._given(collectives.SCATTER, tensor, part_rows, is_async, root_rank)
        else:
            given = Given(collectives.SCATTER, root_rank, None, [], 0, None, self._joined)
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
        """Gives each rank some rows of the root's tensor: evenly, with the remainder at lower
        ranks.

        With the root's `splits` each rank gets that many rows. Other ranks' `tensor` is not read,
        and may be None; a torch result goes to its device.
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

    def _pair(self, operation: str, peer_of: int, name: str | None) -> tuple[Client, Group, str]:
        client = _client.current()
        peer = whole(f"{operation}: {'dst' if operation == 'send' else 'src'}", peer_of)
        check_name_and_priority("none" if name is None else name, 0)
        src, dst = (client.rank, peer) if operation == "send" else (peer, client.rank)
        if peer == client.rank or not 0 <= peer < client.size:
            raise InvalidArgument(
                f"{operation}: rank {peer} "
                f"{'is this one' if peer == client.rank else 'does not exist'}; "
                f"give another of the job's {client.size} ranks"
            )
        group = Group(client, ProcessSet([src, dst]), operation)
        return client, group, f"{'talweg.send' if name is None else name}.{src}.{dst}"

    def _send(
        self,
        is_async: bool,
        tensor: Any,
        dst: int,
        name: str | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client, group, name = self._pair("send", dst, name)
        given = self._given(
            collectives.SEND,
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
        """Sends the tensor to rank `dst`, which calls recv(). Returns when `dst` has taken it."""
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
        client, group, name = self._pair("recv", src, name)
        wanted: Rows | None = None
        fill: Any = None
        if tensor_or_shape is not None and isinstance(tensor_or_shape, (tuple, list)):
            if dtype is None:
                raise InvalidArgument(
                    "recv: a shape needs a dtype: pass dtype=..., or None for whatever comes"
                )
            shape_wanted = tuple(whole("recv: a dimension", each) for each in tensor_or_shape)
            if min(shape_wanted, default=0) < 0:
                raise InvalidArgument(
                    f"recv: the shape {shape_wanted} has a dimension below 0: give those of what "
                    "is sent, or None for whatever comes"
                )
            require_dimensions(collectives.SEND, shape_wanted)
            probe = framework.empty(framework.dtype_named(dtype), (0,))
            row_bytes = math.prod(shape_wanted) * framework.item_bytes(probe)
            wanted = Rows(framework.dtype(probe), shape_wanted, row_bytes)
        elif tensor_or_shape is not None:
            framework.require_target(tensor_or_shape)
            wanted, _ = self._rows(tensor_or_shape, collectives.SEND)
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

        given = Given(collectives.SEND, src, wanted, [], 0, None, allocate)
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
        """Returns the tensor that rank `src` sends with send().

        Given a tensor, recv() writes into it. Given a shape and a dtype, it returns a new tensor of
        these. Given None, it returns a new tensor of any shape and dtype that is sent. Raises
        Mismatch if the sent tensor has another shape or dtype.
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


def _splits(given: Any, rows: int, size: int, operation: str) -> list[int]:
    if given is None:
        if rows % size != 0:
            raise InvalidArgument(
                f"{operation}: {rows} rows do not divide among {size} ranks: pass splits=[...]"
            )
        return split_evenly(rows, size)
    wanted = f"a list of {size} whole numbers, one for each rank"
    splits = whole_numbers(f"{operation}: splits", given, wanted)
    if len(splits) != size or min(splits) < 0 or sum(splits) != rows:
        raise InvalidArgument(
            f"{operation}: splits is {splits}; it must be {size} numbers of 0 or more, one for "
            f"each rank, that add up to the tensor's {rows} rows"
        )
    return splits
