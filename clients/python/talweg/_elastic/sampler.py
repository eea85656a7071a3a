# SPDX-License-Identifier: Apache-2.0
"""Deals samples to ranks that come and go: docs/elastic.md."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from talweg.errors import InvalidArgument

_TORCH_LOADER = "torch.utils.data.dataloader"


class ElasticSampler:
    """Deals an epoch's samples to the ranks, batch by batch. One rank takes each sample, once.

        sampler = talweg.ElasticSampler(len(dataset), batch_size=32)
        state = talweg.State(sampler=sampler, ...)
        for indices in sampler:       # This rank's: a list, which may be empty in the last step.
            ...
            state.end_step()

    Each rank takes a batch in each step. When the membership changes, the samples that are left are
    dealt to the ranks that are there. A rank that is lost before it has ended a step has not taken
    its batch, which is dealt again. `length` is the number of samples, or a sequence so long.

    It cannot be the batch_sampler of torch's DataLoader. talweg.torch.ElasticLoader loads its
    samples.
    """

    def __init__(
        self, length: int | Sequence[Any], batch_size: int = 1, shuffle: bool = True, seed: int = 0
    ) -> None:
        count = length if isinstance(length, int) else len(length)
        if count < 0 or batch_size < 1:
            raise InvalidArgument(
                f"ElasticSampler of {count} samples in batches of {batch_size}: both must be "
                "positive"
            )
        self.batch_size = batch_size
        self._count = count
        self._shuffle = shuffle
        self._seed = seed
        self._rank, self._size = 0, 1
        # How often the next batches have changed from what ahead() has told.
        self.changes = 0
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Begins with all samples, in the order of `epoch`. Call it at every rank alike."""
        self.epoch = epoch
        self._left = list(range(self._count))
        if self._shuffle:
            random.Random(f"{self._seed}.{epoch}").shuffle(self._left)
        self._dealt: list[list[int]] = []  # In the step that has begun, by rank.
        self.changes += 1

    def deal(self, rank: int, size: int) -> None:
        """Deals the samples that are left to `size` ranks from now on. This rank is `rank`."""
        if (rank, size) != (self._rank, self._size):
            self.changes += 1
        self._rank, self._size = rank, size

    @property
    def length(self) -> int:
        """How many samples an epoch has."""
        return self._count

    @property
    def left(self) -> int:
        """How many samples nobody has taken in this epoch."""
        return len(self._left) + sum(len(batch) for batch in self._dealt)

    @property
    def step_samples(self) -> int:
        """How many samples all ranks have in the step that has begun."""
        return sum(len(batch) for batch in self._dealt)

    @property
    def own_samples(self) -> int:
        """How many samples this rank has in the step that has begun."""
        return len(self._dealt[self._rank]) if self._dealt else 0

    def __len__(self) -> int:
        """How many steps the samples that are left make."""
        each = self.batch_size * self._size
        return (len(self._left) + each - 1) // each

    def __iter__(self) -> Iterator[list[int]]:
        if sys._getframe(1).f_globals.get("__name__") == _TORCH_LOADER:
            raise InvalidArgument(
                "DataLoader(batch_sampler=ElasticSampler(...)): its workers take batches that nobody "
                "deals again, and it cannot load a batch without samples: use "
                "talweg.torch.ElasticLoader(dataset, sampler, ...), which takes its other options"
            )
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        self.begin_again()
        while self._left:
            self._dealt, self._left = self._deal_step(self._left)
            yield list(self._dealt[self._rank])
            if self._dealt:
                raise InvalidArgument(
                    "ElasticSampler: the step of the last batch has not ended: call end_step() of "
                    "the State that has the sampler after each batch, before the next one is taken"
                )

    def begin_again(self) -> None:
        """Takes back the batches of a step that nobody has ended, to deal them again."""
        self._left = [index for batch in self._dealt for index in batch] + self._left
        self._dealt = []

    def ahead(self) -> Iterator[list[int]]:
        """Yields this rank's batch of the step that has begun, and the batches that follow if
        nobody comes or goes. Takes none of them.
        """
        rank, left = self._rank, self._left
        if self._dealt:
            yield list(self._dealt[rank])
        while left:
            dealt, left = self._deal_step(left)
            yield dealt[rank]

    def _deal_step(self, left: list[int]) -> tuple[list[list[int]], list[int]]:
        """Returns the batches of one step, by rank, and the samples that are left then."""
        count = min(self.batch_size * self._size, len(left))
        each, more = divmod(count, self._size)
        dealt, at = [], 0
        for rank in range(self._size):
            end = at + each + (rank < more)
            dealt.append(left[at:end])
            at = end
        return dealt, left[count:]

    def end_step(self, ended: Sequence[bool] | None) -> None:
        """Ends the step. `ended` says by rank who has ended it. None means that all have."""
        again = [
            index
            for rank, batch in enumerate(self._dealt)
            if ended is not None and not ended[rank]
            for index in batch
        ]
        if again:
            self.changes += 1
        self._left = again + self._left
        self._dealt = []

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the epoch, for a State."""
        return {"epoch": self.epoch, "left": list(self._left), "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["count"] != self._count:
            raise InvalidArgument(
                f"ElasticSampler: this rank has {self._count} samples, and the job "
                f"{state['count']}: give every rank the same data"
            )
        self.epoch, self._left, self._dealt = state["epoch"], list(state["left"]), []
        self.changes += 1
