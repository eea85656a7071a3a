# SPDX-License-Identifier: Apache-2.0
"""A model of docs/local_steps.md in one process: all ranks' parameters, as NumPy arrays of f64.

It shares nothing with talweg.torch. The inner steps are those of the gradient that the caller
gives: SGD with momentum, or AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

Arrays = list[np.ndarray]
Inner = Callable[[Arrays, Arrays], None]


class Sgd:
    """Changes parameters by gradients, with momentum."""

    def __init__(self, lr: float, momentum: float = 0.0) -> None:
        self._lr, self._momentum = lr, momentum
        self._moments: Arrays = []

    def __call__(self, parameters: Arrays, gradients: Arrays) -> None:
        self._moments = self._moments or [np.zeros_like(each) for each in parameters]
        for x, g, moment in zip(parameters, gradients, self._moments):
            moment *= self._momentum
            moment += g
            x -= self._lr * moment


class AdamW:
    """Changes parameters by gradients, as torch.optim.AdamW does with its defaults."""

    def __init__(self, lr: float) -> None:
        self._lr, self._step = lr, 0
        self._first: Arrays = []
        self._second: Arrays = []

    def __call__(self, parameters: Arrays, gradients: Arrays) -> None:
        self._first = self._first or [np.zeros_like(each) for each in parameters]
        self._second = self._second or [np.zeros_like(each) for each in parameters]
        self._step += 1
        for x, g, first, second in zip(parameters, gradients, self._first, self._second):
            x *= 1 - self._lr * 0.01
            first += 0.1 * (g - first)
            second += 0.001 * (g * g - second)
            root = np.sqrt(second / (1 - 0.999**self._step)) + 1e-8
            x -= self._lr * (first / (1 - 0.9**self._step)) / root


@dataclass
class Told:
    """The arguments of DiLoCo. The defaults are those of LocalSGD."""

    every: int
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    nesterov: bool = False
    delay: int = 0
    mix: float = 0.0
    # The places of each fragment's parameters.
    fragments: Sequence[Sequence[int]] = field(default_factory=list)


class Model:
    """All ranks. `gradients(rank, step, parameters)` computes one rank's."""

    def __init__(
        self,
        told: Told,
        begin: Arrays,
        inner: Sequence[Inner],
        gradients: Callable[[int, int, Arrays], Arrays],
    ) -> None:
        self.told = told
        self.shared: Arrays = [each.astype(np.float64) for each in begin]
        self.momentum = [np.zeros_like(each) for each in self.shared]
        self.ranks = [[each.copy() for each in self.shared] for _ in inner]
        self.step = 0
        self._inner = inner
        self._gradients = gradients
        self._fragments = list(told.fragments) or [range(len(begin))]
        self._sent: dict[tuple[int, int], np.ndarray] = {}  # Mean differences, by step and place.

    def make_step(self) -> None:
        told, every = self.told, self.told.every
        self.step += 1
        for rank, (own, inner) in enumerate(zip(self.ranks, self._inner)):
            inner(own, self._gradients(rank, self.step - 1, own))
        turns = [
            (places, ceil((number + 1) * every / len(self._fragments)))
            for number, places in enumerate(self._fragments)
        ]
        for places, first in turns:  # Those that are sent before this step's are applied.
            sent = self.step - told.delay
            if told.delay and sent >= first and (sent - first) % every == 0:
                self._apply(places, sent)
        for places, first in turns:
            if self.step >= first and (self.step - first) % every == 0:
                for place in places:
                    own = np.stack([rank[place] for rank in self.ranks])
                    self._sent[self.step, place] = (self.shared[place] - own).mean(axis=0)
                if told.delay == 0:
                    self._apply(places, self.step)

    def _apply(self, places: Sequence[int], sent: int) -> None:
        told = self.told
        for place in places:
            mean, momentum = self._sent.pop((sent, place)), self.momentum[place]
            momentum *= told.outer_momentum
            momentum += mean
            way = mean + told.outer_momentum * momentum if told.nesterov else momentum
            self.shared[place] -= told.outer_lr * way
            for rank in self.ranks:
                rank[place] *= told.mix
                rank[place] += (1 - told.mix) * self.shared[place]
