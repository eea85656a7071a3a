# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic.ElasticSampler."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sized

import torch

import talweg

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """Horovod's sampler. It deals what is left of an epoch anew after each change.

    It keeps how many samples were done, but not which. It repeats samples at the end, so that all
    ranks have the same number. talweg.ElasticSampler repeats none, and takes each sample once.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins the next epoch, which has all samples. Call it at the end of an epoch."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts a batch that every rank has processed. `batch_idx` has no effect."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals the samples that are left to the current ranks."""
        is_in = talweg.is_initialized()
        self.num_replicas = talweg.size() if is_in else 1
        self.rank = talweg.rank() if is_in else 0
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = copy.copy(self.remaining_indices)
        while indices and len(indices) < self.total_size:
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
