# SPDX-License-Identifier: Apache-2.0
"""Collectives of many tensors, which have one handle, beside those of calls.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from talweg._client import Handle
from talweg._collectives.calls import Collectives
from talweg._collectives.pair_calls import PairCalls
from talweg._collectives.survivors_gather import Gathered
from talweg._declaration import Op


class GroupedCalls(Collectives, PairCalls):
    """All calls of one framework's module. `options` are those of the call of one tensor."""

    def grouped_all_gather_into(
        self,
        outputs: Iterable[Any],
        tensors: Iterable[Any],
        name: str | None = None,
        **options: Any,
    ) -> list[Any]:
        """Runs all_gather_into() of many tensors, with one output each; returns the outputs."""
        result: list[Any] = self._all_gather_into(False, outputs, tensors, True, name, **options)
        return result

    def grouped_all_gather_into_async(
        self,
        outputs: Iterable[Any],
        tensors: Iterable[Any],
        name: str | None = None,
        **options: Any,
    ) -> Handle:
        """Starts grouped_all_gather_into(). Returns one handle for all tensors."""
        handle: Handle = self._all_gather_into(True, outputs, tensors, True, name, **options)
        return handle

    def grouped_all_gather_survivors(
        self, tensors: Iterable[Any], name: str | None = None, **options: Any
    ) -> list[Gathered]:
        """Runs all_gather_survivors() of many tensors; returns a list of results.

        A rank that is lost in the middle may be in the first results and not in the others.
        """
        found: list[Gathered] = self._all_gather_survivors(False, tensors, True, name, **options)
        return found

    def grouped_all_gather_survivors_async(
        self, tensors: Iterable[Any], name: str | None = None, **options: Any
    ) -> Handle:
        """Starts grouped_all_gather_survivors(). Returns one handle for all tensors."""
        handle: Handle = self._all_gather_survivors(True, tensors, True, name, **options)
        return handle

    def grouped_gather(
        self, tensors: Iterable[Any], root_rank: int = 0, name: str | None = None, **options: Any
    ) -> list[Any]:
        """Runs gather() of many tensors; returns a list of results, which are None but at the
        root.
        """
        result: list[Any] = self._gather(False, tensors, True, root_rank, name, **options)
        return result

    def grouped_gather_async(
        self, tensors: Iterable[Any], root_rank: int = 0, name: str | None = None, **options: Any
    ) -> Handle:
        """Starts grouped_gather(). Returns one handle for all tensors."""
        handle: Handle = self._gather(True, tensors, True, root_rank, name, **options)
        return handle

    def grouped_scatter(
        self,
        tensors: Iterable[Any],
        root_rank: int = 0,
        splits: Sequence[Any] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> list[Any]:
        """Runs scatter() of many tensors, with one list of splits each; returns a list of results.

        Ranks other than the root give a list as long, of tensors that are not read, or of None.
        """
        of = (splits, True, root_rank, name)
        result: list[Any] = self._scatter(False, tensors, *of, **options)
        return result

    def grouped_scatter_async(
        self,
        tensors: Iterable[Any],
        root_rank: int = 0,
        splits: Sequence[Any] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Handle:
        """Starts grouped_scatter(). Returns one handle for all tensors."""
        of = (splits, True, root_rank, name)
        handle: Handle = self._scatter(True, tensors, *of, **options)
        return handle

    def grouped_reduce(
        self,
        tensors: Iterable[Any],
        root_rank: int = 0,
        name: str | None = None,
        op: Op | None = None,
        **options: Any,
    ) -> list[Any]:
        """Runs reduce() of many tensors; returns a list of results, which are None but at the
        root.
        """
        result: list[Any] = self._reduce(False, tensors, True, root_rank, name, op, **options)
        return result

    def grouped_reduce_async(
        self,
        tensors: Iterable[Any],
        root_rank: int = 0,
        name: str | None = None,
        op: Op | None = None,
        **options: Any,
    ) -> Handle:
        """Starts grouped_reduce(). Returns one handle for all tensors."""
        handle: Handle = self._reduce(True, tensors, True, root_rank, name, op, **options)
        return handle
