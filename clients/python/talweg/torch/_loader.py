# SPDX-License-Identifier: Apache-2.0
"""A DataLoader of what an ElasticSampler deals: docs/elastic.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from talweg._elastic.sampler import ElasticSampler
from talweg.errors import InvalidArgument

# What the sampler decides, or what would bring batches in another order than it deals them.
_DECIDED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order")


class _Ahead:
    """What workers are given to read: batches that the sampler has not dealt yet."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self._sampler.ahead():
            yield indices or [0]


class ElasticLoader(DataLoader):  # type: ignore[type-arg]
    """Loads the batches that a talweg.ElasticSampler deals to this rank.

        loader = talweg.torch.ElasticLoader(dataset, sampler, num_workers=4)
        for batch in loader:
            ...
            state.end_step()      # Before the next batch is taken.

    Options are those of DataLoader. Workers read ahead. A batch counts as taken when the program
    gets it; after a change of membership what they have read is dropped, and what is left is dealt
    and read anew (persistent_workers=True spares them a start).

    A rank that has no sample in an epoch's last step gets the dataset's first one, and the `weight`
    of its Elastic is 0: multiply the loss by it.
    """

    def __init__(self, dataset: Any, sampler: ElasticSampler, **options: Any) -> None:
        for name in _DECIDED:
            if name in options:
                raise InvalidArgument(
                    f"ElasticLoader({name}={options[name]!r}): leave it out: the ElasticSampler "
                    "says which samples come, and in which order"
                )
        if len(dataset) != sampler.length:
            raise InvalidArgument(
                f"ElasticLoader: the sampler deals {sampler.length} samples, and the dataset has "
                f"{len(dataset)}: make it of ElasticSampler(len(dataset), ...)"
            )
        super().__init__(dataset, batch_sampler=_Ahead(sampler), **options)
        self._dealer = sampler

    def __iter__(self) -> Any:
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        batches: Any = None
        changes = 0
        for _ in self._dealer:
            if batches is None or changes != self._dealer.changes:
                batches = None  # Its workers end before others start.
                batches, changes = super().__iter__(), self._dealer.changes
            yield next(batches)
