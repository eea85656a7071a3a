# SPDX-License-Identifier: Apache-2.0
"""Deals samples to ranks that come and go: docs/elastic.md."""

from __future__ import annotations

import operator
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from talweg._elastic.samples import Samples
from talweg._elastic.shares import STEPS, OwnPace, Place, Shares
from talweg._library.native_arguments import whole
from talweg.errors import InvalidArgument, Mismatch

# A DataLoader takes batches, or samples to make batches of, in these modules.
_TORCH_LOADERS = ("torch.utils.data.dataloader", "torch.utils.data.sampler")
# The longest time that a program may tell of a step.
_SECONDS_MAX = 10**9
# After so many full steps in a row without a time a rank warns that it knows none. With local steps
# a rank has a time only of steps in which it pushes.
_UNTIMED_MAX = 16 * STEPS


class Stopwatch(Protocol):
    """Times this rank's steps."""

    def begin(self) -> None:
        """This rank has got its batch."""

    def take_ns(self) -> tuple[int | None, int]:
        """Returns for how long this rank has worked since then by itself (None: it does not know),
        and how long that is ago.
        """


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

    With `balance=True` a rank that is slower for long gets fewer samples in each step, so that all
    ranks end their work together, and a faster rank gets more, at most `batch_size_max` (else twice
    `batch_size`). A step has as many samples as before. `shares` says who gets how many. Ranks'
    batches differ then, so weigh a loss that is a mean over a rank's samples by `weight`.

    It cannot be the batch_sampler of torch's DataLoader. talweg.torch.ElasticLoader loads its
    samples.
    """

    def __init__(
        self,
        length: int | Sequence[Any],
        batch_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        *,
        balance: bool = False,
        batch_size_max: int | None = None,
    ) -> None:
        count = _count_of(length)
        batch_size = whole("ElasticSampler(batch_size)", batch_size)
        if batch_size_max is not None:
            batch_size_max = whole("ElasticSampler(batch_size_max)", batch_size_max)
        if count < 0 or batch_size < 1:
            raise InvalidArgument(
                f"ElasticSampler of {count} samples in batches of {batch_size}: both must be "
                "positive"
            )
        most = 2 * batch_size if batch_size_max is None else batch_size_max
        if batch_size_max is not None and not balance:
            raise InvalidArgument(
                f"ElasticSampler(batch_size_max={batch_size_max}): it bounds the batches that "
                "balance=True makes; without it no batch is larger than batch_size"
            )
        if most < batch_size:
            raise InvalidArgument(
                f"ElasticSampler(batch_size_max={most}) is less than batch_size, which is "
                f"{batch_size}: a step would have no room for all its samples"
            )
        self.batch_size = batch_size
        # A rank's largest batch.
        self.batch_size_max = most if balance else batch_size
        # Times this rank's steps, if batches are in proportion to speed. The State gives it.
        self.stopwatch: Stopwatch | None = None
        self._shares = Shares(batch_size, most) if balance else None
        self._pace = OwnPace()
        self._noted_ns: int | None = None
        self._untimed = 0
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
        order = list(range(self._count))
        if self._shuffle:
            random.Random(f"{self._seed}.{epoch}").shuffle(order)
        self._left = Samples(order)
        self._dealt: list[list[int]] = []  # In the step that has begun, by rank.
        self.changes += 1

    def deal(self, rank: int, size: int, places: Sequence[Place] | None = None) -> None:
        """Deals the samples that are left to `size` ranks from now on. This rank is `rank`.

        `places` are the ranks' nodes and local ranks. A rank's speed is known by its place.
        """
        has_changed = (rank, size) != (self._rank, self._size)
        self._rank, self._size = rank, size
        if self._shares is not None:
            if places is None or len(places) != size:
                places = [(0, number) for number in range(size)]
            if self._shares.deal(places):
                has_changed = True
                self._pace.begin_anew(skips=True)
        self.changes += has_changed

    @property
    def balances(self) -> bool:
        """Whether ranks' batches are in proportion to their speeds."""
        return self._shares is not None

    @property
    def shares(self) -> list[int]:
        """How many samples each rank gets in a full step, by rank."""
        if self._shares is None:
            return [self.batch_size] * self._size
        return list(self._shares.by_rank)

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

    @property
    def weight(self) -> float:
        """The factor for this rank's loss, or gradient, that is a mean over its own samples.

        With it the ranks' average is the mean over all samples of the step. It is 1.0 if all ranks
        have the same number of samples.
        """
        samples = self.step_samples
        return self.own_samples * self._size / samples if samples else 1.0

    def note_own_time(self, seconds: float) -> None:
        """Tells how long this rank has worked on its batch, without its waits for other ranks.

        It is for programs whose work is not timed by itself: those whose framework pushes gradients
        by a kernel of its own, or computes on a GPU. Call it in each step, before end_step().
        """
        if not 0 <= seconds <= _SECONDS_MAX:  # NaN is neither.
            raise InvalidArgument(
                f"note_own_time({seconds}): it is the seconds of one step's work, from 0 to "
                f"{_SECONDS_MAX}"
            )
        self._noted_ns = max(int(seconds * 1e9), 1)

    def take_times(self, reads: bool = True) -> tuple[int, int]:
        """Returns what this rank tells of its speed at the end of a step: the nanoseconds that a
        sample takes it, and a step. 0, 0: it cannot tell yet.

        It reads the stopwatch, which several samplers may share, if its step has begun. Without
        `reads` it does not.
        """
        own_ns, step_ns = None, 0
        if self.stopwatch is not None and reads and self._dealt:
            own_ns, step_ns = self.stopwatch.take_ns()
        own_ns, self._noted_ns = self._noted_ns or own_ns, None
        samples = self.own_samples
        if samples and self.step_samples == self.batch_size * self._size:
            if own_ns is not None:
                self._untimed = 0
                self._pace.on_step(own_ns, step_ns, samples)
            elif self.stopwatch is not None:
                self._count_untimed()
        return self._pace.told_ns

    def _count_untimed(self) -> None:
        self._untimed += 1
        if self._untimed == _UNTIMED_MAX:
            warnings.warn(
                f"ElasticSampler(balance=True): this rank has no time of its own work in {_UNTIMED_MAX} "
                "steps, so all shares stay as they are: its framework pushes gradients where nobody "
                "sees when. Call the sampler's note_own_time(seconds) in each step",
                RuntimeWarning,
                stacklevel=2,
            )

    def __len__(self) -> int:
        """How many steps the samples that are left make."""
        each = self.batch_size * self._size
        return (len(self._left) + each - 1) // each

    def __iter__(self) -> Iterator[list[int]]:
        if sys._getframe(1).f_globals.get("__name__") in _TORCH_LOADERS:
            raise InvalidArgument(
                "DataLoader with an ElasticSampler as its sampler or batch_sampler: its workers take "
                "batches that nobody deals again, and it cannot load a batch without samples: use "
                "talweg.torch.ElasticLoader(dataset, sampler, ...), which takes its other options"
            )
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        self.begin_again()
        while self._left:
            self._dealt, end = self._deal_step(self._left, self._left.begin)
            self._left.take(end - self._left.begin)
            if self.stopwatch is not None:
                self.stopwatch.begin()
            yield list(self._dealt[self._rank])
            if self._dealt:
                raise InvalidArgument(
                    "ElasticSampler: the step of the last batch has not ended: call end_step() of "
                    "the State that has the sampler after each batch, before the next one is taken"
                )

    def begin_again(self) -> None:
        """Takes back the batches of a step that nobody has ended, to deal them again."""
        self._left.give_back([index for batch in self._dealt for index in batch])
        self._dealt = []

    def ahead(self) -> Iterator[list[int]]:
        """Yields this rank's batch of the step that has begun, and the batches that follow if
        nobody comes or goes. Takes none of them.
        """
        # What comes back takes places before this one, and a new epoch has samples of its own.
        rank, left, at = self._rank, self._left, self._left.begin
        if self._dealt:
            yield list(self._dealt[rank])
        while at < left.end:
            dealt, at = self._deal_step(left, at)
            yield dealt[rank]

    def _deal_step(self, left: Samples, at: int) -> tuple[list[list[int]], int]:
        """Returns the batches, by rank, of the step whose first sample is at place `at`, and the
        place after its last one.
        """
        count = min(self.batch_size * self._size, left.end - at)
        dealt = []
        for samples in self._samples_of(count):
            dealt.append(left.between(at, at + samples))
            at += samples
        return dealt, at

    def _samples_of(self, count: int) -> list[int]:
        """Returns how many samples each rank has in a step that has `count`."""
        if self._shares is None:
            each, more = divmod(count, self._size)
            return [each + (rank < more) for rank in range(self._size)]
        if count == self.batch_size * self._size:
            return self._shares.by_rank
        return self._shares.of_rest(count)

    def end_step(self, ended: Sequence[bool] | None, times: Sequence[int] = ()) -> None:
        """Ends the step. `ended` says by rank who has ended it. None means that all have.

        `times` are what take_times() has returned: for a sample, by rank, and then the longest of a
        step.
        """
        # A rank that has not ended the step has told nothing.
        if self._shares is not None and times and all(times[:-1]):
            has_changed = self._shares.on_times(times[:-1], times[-1])
            self._pace.begin_anew(skips=has_changed)
            self.changes += has_changed
        again = [
            index
            for rank, batch in enumerate(self._dealt)
            if ended is not None and not ended[rank]
            for index in batch
        ]
        if again:
            self.changes += 1
        self._left.give_back(again)
        self._dealt = []

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the epoch, for a State."""
        state = {"epoch": self.epoch, "left": self._left.all(), "count": self._count}
        if self._shares is None:
            return state
        return {**state, "sizes": self._sizes, "shares": self._shares.state}

    @property
    def _sizes(self) -> list[int]:
        return [self.batch_size, self.batch_size_max]

    def require_alike(self, state: dict[str, Any]) -> None:
        """Raises Mismatch if the job, of which `state` is, deals by other rules than this rank."""
        own = self._sizes if self.balances else None
        if own != state.get("sizes"):
            raise Mismatch(
                f"ElasticSampler: this rank has {_rules(own)}, and the job {_rules(state.get('sizes'))}: "
                "give every rank the same"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["count"] != self._count:
            raise InvalidArgument(
                f"ElasticSampler: this rank has {self._count} samples, and the job "
                f"{state['count']}: give every rank the same data"
            )
        self.epoch, self._left, self._dealt = state["epoch"], Samples(list(state["left"])), []
        if self._shares is not None:
            self._shares.state = state.get("shares", ())
            self._pace.begin_anew(skips=True)
        self.changes += 1


def _count_of(length: Any) -> int:
    try:
        return operator.index(length)
    except TypeError:
        pass
    try:
        return len(length)
    except TypeError:
        raise InvalidArgument(
            f"ElasticSampler({length!r}): it is the number of samples, or a sequence that is so long"
        ) from None


def _rules(sizes: list[int] | None) -> str:
    if sizes is None:
        return "balance=False"
    return f"balance=True with batch_size={sizes[0]} and batch_size_max={sizes[1]}"
