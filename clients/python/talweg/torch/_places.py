# SPDX-License-Identifier: Apache-2.0
"""The places of a group's ranks. torch lets a program put the ranks in any order.

Talweg's collectives have parts in ascending order of the ranks that they come from or go to. If a
group has another order, a rank sorts the parts that it gives before a call, and puts the parts that
it gets back into the group's order after the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from talweg.errors import InvalidArgument
from talweg.torch._c10d_tensors import require_one_dtype

_Item = TypeVar("_Item")


class Places:
    """The places of a group's ranks. `ranks` are the job's numbers for them, in group order."""

    def __init__(self, ranks: Sequence[int]) -> None:
        ascending = sorted(ranks)
        self._size = len(ranks)
        self._by_rank = [list(ranks).index(rank) for rank in ascending]
        self._by_place = [ascending.index(rank) for rank in ranks]
        self.are_ascending = list(ranks) == ascending

    def by_rank(self, by_place: Sequence[_Item]) -> list[_Item]:
        """Takes one item for each place. Returns them in ascending order of the places' ranks."""
        return [by_place[place] for place in self._by_rank]

    def put_back(self, result: torch.Tensor, lengths: list[int]) -> list[int]:
        """Puts the result's parts, which are in ascending order of ranks, into the order of the
        places. `lengths` are theirs. Returns the lengths in the new order.
        """
        flat = result.view(-1)
        parts = flat.split(lengths)
        flat.copy_(torch.cat([parts[at] for at in self._by_place]))
        return [lengths[at] for at in self._by_place]

    def parts(
        self, tensors: Sequence[torch.Tensor], counts: list[int]
    ) -> tuple[Sequence[torch.Tensor], list[int]]:
        """Returns the parts of `tensors` and their counts, in ascending order of ranks.

        `tensors` are one tensor for each place, or hold the places' parts one after another.
        `counts` are the numbers of elements for each place.
        """
        if self.are_ascending:
            return tensors, counts
        pieces = tensors
        if len(tensors) != self._size:
            pieces = torch.cat([tensor.reshape(-1) for tensor in tensors]).split(counts)
        return self.by_rank(pieces), self.by_rank(counts)

    def of_every_rank(self, lists: Any, like: torch.Tensor, operation: str) -> list[torch.Tensor]:
        """Returns the tensors of the one list in `lists`, in ascending order of ranks.

        Raises InvalidArgument unless that list has one tensor for each place, and all have the
        dtype of `like`.
        """
        if len(lists) != 1 or len(lists[0]) != self._size:
            counts = [len(each) for each in lists]
            raise InvalidArgument(
                f"{operation}: lists of {counts} tensors; give one list of {self._size}, a "
                "tensor for each rank"
            )
        require_one_dtype([like, *lists[0]], operation)
        return self.by_rank(lists[0])
