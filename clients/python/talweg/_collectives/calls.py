# SPDX-License-Identifier: Apache-2.0
"""all_gather, reduce_scatter and their like, as a framework's module offers them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from talweg import _client
from talweg._arguments import listed
from talweg._client import Handle
from talweg._collectives import collectives
from talweg._collectives.collectives import Given, Kind, Rows, split_evenly
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.reduction_calls import Reductions
from talweg._collectives.survivors_gather import Gathered
from talweg._library.native_arguments import whole_numbers
from talweg.errors import InvalidArgument


class Collectives(Reductions):
    """The calls of one framework's module."""

    # ----- all_gather -----

    def _gathers(
        self,
        is_async: bool,
        tensors: Iterable[Any],
        process_set: ProcessSet | None,
        kind: Kind,
    ) -> tuple[_client.Client, Group, list[Any], list[Given]]:
        """Returns the client, the group, the tensors, and the calls that gather their rows."""
        client = _client.current()
        group = Group(client, process_set, kind.name)
        every = listed(tensors, f"grouped_{kind.name}")
        calls = [self._given(kind, tensor, lambda rows: [rows], is_async) for tensor in every]
        return client, group, every, calls

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
        client, group, every, calls = self._gathers(is_async, tensors, process_set, kind)
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
        outputs: Iterable[Any],
        tensors: Iterable[Any],
        many: bool,
        name: str | None,
        process_set: ProcessSet | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        client, kind = _client.current(), collectives.ALL_GATHER_INTO
        group = Group(client, process_set, kind.name)
        every = listed(tensors, "grouped_all_gather_into")
        targets = listed(outputs, "grouped_all_gather_into: outputs")
        if len(targets) != len(every):
            raise InvalidArgument(
                f"all_gather_into: {len(targets)} outputs for {len(every)} tensors: give one for each"
            )
        calls, finishers = [], []
        for output, tensor in zip(targets, every):
            rows, count = self._rows(tensor, kind)
            wanted = (rows.dtype, (count * group.size, *rows.row_shape))
            into = self._into(output, output, kind.name, wanted)
            calls.append(
                self._given(kind, tensor, lambda rows: [rows], is_async, allocate=into.allocate)
            )
            finishers.append(into.finish)

        def shape(results: list[Any]) -> Any:
            placed = [finish(results) for finish in finishers]
            return placed if many else placed[0]

        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

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
        of = (name, process_set, priority, timeout_s)
        return self._all_gather_into(False, [output], [tensor], False, *of)

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
        of = (name, process_set, priority)
        return self._all_gather_into(True, [output], [tensor], False, *of)

    def _all_gather_survivors(
        self,
        is_async: bool,
        tensors: Iterable[Any],
        many: bool,
        name: str | None,
        process_set: ProcessSet | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        kind = collectives.ALL_GATHER_SURVIVORS
        client, group, every, calls = self._gathers(is_async, tensors, process_set, kind)

        def shape(results: list[Gathered]) -> Any:
            placed = [
                found._replace(rows=self._framework.given_back(found.rows, like))
                for found, like in zip(results, every)
            ]
            return placed if many else placed[0]

        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

    def all_gather_survivors(
        self,
        tensor: Any,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Gathered:
        """Runs all_gather() of the ranks that are left, if some are lost.

        Returns (rows, ranks): the tensors joined along the first dimension, and the numbers of the
        ranks that they come from, in this order. Both are the same at all ranks that are left.
        """
        of = (name, process_set, priority, timeout_s)
        found: Gathered = self._all_gather_survivors(False, [tensor], False, *of)
        return found

    def all_gather_survivors_async(
        self,
        tensor: Any,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts all_gather_survivors(). Returns its handle; the tensor may be changed at once."""
        of = (name, process_set, priority)
        handle: Handle = self._all_gather_survivors(True, [tensor], False, *of)
        return handle

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
        out: Any = None,
    ) -> Any:
        client = _client.current()
        group = Group(client, process_set, "all_to_all")
        every = listed(tensors, "grouped_all_to_all")
        splits_of = _splits_of_each(splits, every, "all_to_all")

        into = None if out is None else self._into(out, out, "all_to_all", None)
        make = self._joined if into is None else into.allocate

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            result, address = make(rows, counts)
            return (result, counts), address

        def call(tensor: Any, splits: Any) -> Given:
            def part_rows(rows: int) -> list[int]:
                return _splits(splits, rows, group.size, "all_to_all")

            kind = collectives.ALL_TO_ALL
            return self._given(kind, tensor, part_rows, is_async, allocate=allocate)

        calls = [call(tensor, each) for tensor, each in zip(every, splits_of)]

        def shape(results: list[Any]) -> Any:
            if into is not None:
                return into.finish(results), results[0][1]
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
        out: Any = None,
    ) -> tuple[Any, list[int]]:
        """Sends rows to every rank, and gets rows from every rank.

        The first `splits[0]` rows go to the group's first rank, the next `splits[1]` to its second,
        and so on. Without `splits` the rows are split evenly; their number must allow that. Returns
        the rows from all ranks, joined in rank order, and how many rows came from each rank. The
        rows go into `out`, if given, which has room for just them and lies apart from the tensor.
        Where it has not, this rank gets InvalidArgument after the call.
        """
        return self._all_to_all(
            False, [tensor], [splits], False, name, process_set, priority, timeout_s, out
        )

    def all_to_all_async(
        self,
        tensor: Any,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        out: Any = None,
    ) -> Handle:
        """Starts all_to_all() and returns its handle; the tensor may be changed at once. Do not
        read or write `out` before synchronize().
        """
        of = (name, process_set, priority, None, out)
        return self._all_to_all(True, [tensor], [splits], False, *of)

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
        tensors: Iterable[Any],
        many: bool,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        client, kind = _client.current(), collectives.GATHER
        group = Group(client, process_set, kind.name)
        group.require_root(root_rank, kind.name)
        every = listed(tensors, "grouped_gather")

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            return self._joined(rows, counts) if counts else (None, 0)

        calls = [
            self._given(kind, tensor, lambda rows: [rows], is_async, root_rank, allocate)
            for tensor in every
        ]
        shape = self._like(every, many)
        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

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
        of = (root_rank, name, process_set, priority, timeout_s)
        return self._gather(False, [tensor], False, *of)

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
        return self._gather(True, [tensor], False, root_rank, name, process_set, priority)

    def _scatter(
        self,
        is_async: bool,
        tensors: Iterable[Any],
        splits: Sequence[Any] | None,
        many: bool,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        client, kind = _client.current(), collectives.SCATTER
        group = Group(client, process_set, kind.name)
        group.require_root(root_rank, kind.name)
        every = listed(tensors, "grouped_scatter")
        splits_of = _splits_of_each(splits, every, kind.name)

        def call(tensor: Any, splits: Any) -> Given:
            if client.rank != root_rank:
                return Given(kind, root_rank, None, [], 0, None, self._joined)
            if tensor is None:
                raise InvalidArgument("scatter: the root has no tensor: only the others pass None")

            def part_rows(rows: int) -> list[int]:
                if splits is None:
                    return split_evenly(rows, group.size)
                return _splits(splits, rows, group.size, kind.name)

            return self._given(kind, tensor, part_rows, is_async, root_rank)

        calls = [call(tensor, each) for tensor, each in zip(every, splits_of)]
        shape = self._like(every, many)
        return self._go(is_async, client, name, group, calls, priority, shape, timeout_s)

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
        of = (root_rank, name, process_set, priority, timeout_s)
        return self._scatter(False, [tensor], [splits], False, *of)

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
        of = (root_rank, name, process_set, priority)
        return self._scatter(True, [tensor], [splits], False, *of)


def _splits_of_each(
    splits: Iterable[Any] | None, tensors: Sequence[Any], operation: str
) -> list[Any]:
    """Returns one list of splits, or None, for each tensor of a grouped call."""
    given = [None] * len(tensors) if splits is None else splits
    found = listed(given, f"grouped_{operation}: splits")
    if len(found) != len(tensors):
        raise InvalidArgument(
            f"{operation}: {len(found)} lists of splits for {len(tensors)} tensors: give one for "
            "each, or None"
        )
    return found


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
