# SPDX-License-Identifier: Apache-2.0
"""The places of a group's ranks, which torch lets a program put in any order.

Talweg's collectives have parts in ascending order of the ranks that they come from or go to. Where
a group's order is another one, what a rank gives is put into that order before a call, and what it
gets is put back after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from talweg.errors import InvalidArgument
from talweg.torch._c10d_tensors import require_one_dtype

_Item = TypeVar("_Item")


class Places:
    """The places of `ranks`, the job's numbers of a group's ranks in the group's own order."""

    def __init__(self, ranks: Sequence[int]) -> None:
        ascending = sorted(ranks)
        self._size = len(ranks)
        self._by_rank = [list(ranks).index(rank) for rank in ascending]
        self._by_place = [ascending.index(rank) for rank in ranks]
        self.are_ascending = list(ranks) == ascending

    def by_rank(self, by_place: Sequence[_Item]) -> list[_Item]:
        """What there is for each place, in ascending order of the ranks there."""
        return [by_place[place] for place in self._by_rank]

    def put_back(self, result: torch.Tensor, lengths: list[int]) -> list[int]:
        """Puts parts of these lengths, in ascending order of the ranks that they come from, into
        the order of the places. Returns their lengths.
        """
        flat = result.view(-1)
        parts = flat.split(lengths)
        flat.copy_(torch.cat([parts[at] for at in self._by_place]))
        return [lengths[at] for at in self._by_place]

    def parts(
        self, tensors: Sequence[torch.Tensor], counts: list[int]
    ) -> tuple[Sequence[torch.Tensor], list[int]]:
        """Tensors that have a part of so many elements for each place, one after another, by rank."""
        if self.are_ascending:
            return tensors, counts
        pieces = tensors
        if len(tensors) != self._size:
            pieces = torch.cat([tensor.reshape(-1) for tensor in tensors]).split(counts)
        return self.by_rank(pieces), self.by_rank(counts)

    def of_every_rank(self, lists: Any, like: torch.Tensor, operation: str) -> list[torch.Tensor]:
        """The one list of one tensor for each place, by rank."""
        if len(lists) != 1 or len(lists[0]) != self._size:
            counts = [len(each) for each in lists]
            raise InvalidArgument(
                f"{operation}: lists of {counts} tensors; give one list of {self._size}, a "
                "tensor for each rank"
            )
        require_one_dtype([like, *lists[0]], operation)
        return self.by_rank(lists[0])
