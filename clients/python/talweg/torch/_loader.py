# SPDX-License-Identifier: Apache-2.0
"""A DataLoader for the batches that an ElasticSampler deals. See docs/elastic.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from talweg._elastic.sampler import ElasticSampler
from talweg.errors import InvalidArgument

# Options that the sampler decides, or that would change the order of batches.
_DECIDED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order")


class _Ahead:
    """The batches that workers read ahead. The sampler has not dealt them yet."""

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

    It takes the options of DataLoader. Workers read ahead. A batch counts as taken when the program
    gets it. After a change of membership the loader drops what workers have read, and the rest of
    the epoch is dealt and read anew. With persistent_workers=True workers go on and need no start.

    A rank that has no sample in an epoch's last step gets the dataset's first sample, and the
    `weight` of its Elastic is 0: multiply the loss by it.
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
                f"{len(dataset)}: make the sampler by ElasticSampler(len(dataset), ...)"
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
                batches = None  # The old workers end before new ones start.
                batches, changes = super().__iter__(), self._dealer.changes
            yield next(batches)
