# SPDX-License-Identifier: Apache-2.0
"""ElasticSampler(balance=True), and the time of a rank's own work, without a job."""

from __future__ import annotations

import gc
import pickle
import random
import threading
import unittest
import warnings
import weakref
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import talweg
import talweg.torch
import torch
from talweg import _client
from talweg._elastic.own_time import OwnTime
from talweg._elastic.shares import STEPS
from torch.utils.data import TensorDataset

_MS = 1_000_000


def _sampler(count: int, batch: int, most: int | None = None) -> talweg.ElasticSampler:
    return talweg.ElasticSampler(count, batch, seed=7, balance=True, batch_size_max=most)


class _Rank:
    """One of several ranks that this process makes the steps of, by turns."""

    def __init__(self, place: tuple[int, int], sampler: talweg.ElasticSampler, ms: float) -> None:
        self.place, self.sampler, self._ms = place, sampler, ms
        self.step_ms = 0.0
        sampler.stopwatch = self

    # As a stopwatch.

    def begin(self) -> None:
        self.step_ms = self._ms * self.sampler.own_samples

    def take_ns(self) -> tuple[int | None, int]:
        return int(self.step_ms * _MS), int(self.step_ms * _MS)


def _deal(ranks: list[_Rank]) -> None:
    places = [rank.place for rank in ranks]
    for number, rank in enumerate(ranks):
        rank.sampler.deal(number, len(ranks), places)


def _end_step(ranks: list[_Rank], ended: list[bool] | None = None) -> None:
    told = [rank.sampler.take_times() for rank in ranks]
    has = [True] * len(ranks) if ended is None else ended
    row = [sample if is_there else 0 for (sample, _), is_there in zip(told, has)]
    row.append(max(step for _, step in told))
    for rank in ranks:
        rank.sampler.end_step(ended, row)


class SamplerTest(unittest.TestCase):
    def test_each_sample_once_whoever_comes_and_goes_at_any_speed(self) -> None:
        changes = 0
        for seed in range(60):
            with self.subTest(seed=seed):
                changes += self._live(random.Random(seed))
        self.assertGreater(changes, 100)

    def _live(self, draw: random.Random) -> int:
        """Makes an epoch. Returns how often the shares changed by ranks' times."""
        count, batch = draw.randrange(0, 6000), draw.randrange(1, 9)

        def rank(node: int) -> _Rank:
            return _Rank((node, 0), _sampler(count, batch), draw.uniform(1, 5))

        ranks = [rank(node) for node in range(draw.randrange(1, 6))]
        taken: Counter[int] = Counter()
        nodes, changes = len(ranks), 0
        while True:
            _deal(ranks)
            shares = ranks[0].sampler.shares
            self.assertEqual(sum(shares), batch * len(ranks))
            self.assertTrue(all(1 <= each <= 2 * batch for each in shares))
            self.assertEqual({tuple(each.sampler.shares) for each in ranks}, {tuple(shares)})
            batches = [next(iter(each.sampler), None) for each in ranks]
            if batches[0] is None:
                self.assertEqual(batches, [None] * len(ranks))
                break
            sizes = [len(each or []) for each in batches]
            if sum(sizes) == batch * len(ranks):
                self.assertEqual(sizes, shares)
            elif sum(sizes) >= len(ranks):
                self.assertGreater(min(sizes), 0)
            lost = {place for place in range(1, len(ranks)) if draw.random() < 0.005}
            ended = [place not in lost or draw.random() < 0.5 for place in range(len(ranks))]
            for has_ended, each in zip(ended, batches):
                taken.update(each or [] if has_ended else [])
            _end_step(ranks, ended)
            changes += ranks[0].sampler.shares != shares
            ranks = [each for place, each in enumerate(ranks) if place not in lost]
            if draw.random() < 0.01:
                joiner = rank(nodes)
                nodes += 1
                state = pickle.loads(pickle.dumps(ranks[0].sampler.state_dict()))
                joiner.sampler.require_alike(state)
                joiner.sampler.load_state_dict(state)
                ranks.insert(draw.randrange(0, len(ranks) + 1), joiner)
        self.assertEqual(taken, Counter(range(count)))
        return changes

    def _ranks(self, *ms: float, count: int = 100_000, batch: int = 32) -> list[_Rank]:
        ranks = [_Rank((node, 0), _sampler(count, batch), each) for node, each in enumerate(ms)]
        _deal(ranks)
        return ranks

    def _steps(self, ranks: list[_Rank], steps: int) -> None:
        for _ in range(steps):
            for rank in ranks:
                next(iter(rank.sampler))
            _end_step(ranks)

    def test_a_rank_that_is_half_as_fast(self) -> None:
        ranks = self._ranks(1, 2)
        changes = ranks[0].sampler.changes
        self._steps(ranks, STEPS)  # The first one does not count.
        self.assertEqual(ranks[0].sampler.shares, [32, 32])
        self.assertEqual(ranks[0].sampler.changes, changes)
        self._steps(ranks, 1)
        for rank in ranks:
            self.assertEqual(rank.sampler.shares, [43, 21])
            self.assertEqual(rank.sampler.changes, changes + 1)
            self.assertEqual(next(rank.sampler.ahead()), next(iter(rank.sampler)))
        weights = [rank.sampler.weight for rank in ranks]
        self.assertEqual(weights, [43 * 2 / 64, 21 * 2 / 64])

    def test_a_position_has_the_shares(self) -> None:
        ranks = self._ranks(1, 2)
        self._steps(ranks, STEPS + 1)
        state = pickle.loads(pickle.dumps(ranks[0].sampler.state_dict()))
        self._steps(ranks, 5)
        other = _Rank((1, 0), _sampler(100_000, 32), 2)
        other.sampler.load_state_dict(state)
        ranks[0].sampler.load_state_dict(state)
        _deal([ranks[0], other])
        self.assertEqual(other.sampler.shares, [43, 21])
        self.assertEqual(other.sampler.state_dict(), state)
        self.assertEqual(ranks[0].sampler.state_dict(), state)
        self._steps([ranks[0], other], STEPS)  # Steps count anew, and the first does not.
        self.assertEqual([each.sampler.take_times() for each in (ranks[0], other)], [(0, 0)] * 2)
        # A sampler that does not balance takes the position alone, and the other way round.
        equal = talweg.ElasticSampler(100_000, 32)
        equal.load_state_dict(state)
        self.assertEqual((equal.left, equal.shares), (len(state["left"]), [32]))
        other.sampler.load_state_dict(equal.state_dict())
        self.assertEqual(other.sampler.shares, [32, 32])

    def test_a_loss_ends_the_count_of_steps(self) -> None:
        ranks = self._ranks(1, 2, 1)
        self._steps(ranks, STEPS)
        for rank in ranks:
            next(iter(rank.sampler))
        _end_step(ranks, [True, True, False])
        ranks = ranks[:2]
        _deal(ranks)
        self._steps(ranks, STEPS)
        self.assertEqual(ranks[0].sampler.shares, [32, 32])
        self._steps(ranks, 1)
        self.assertEqual(ranks[0].sampler.shares, [43, 21])

    def test_steps_with_too_few_samples_do_not_count(self) -> None:
        ranks = self._ranks(1, 2, count=100)
        for epoch in range(1, 40):
            self._steps(ranks, 2)  # The second step has 36 samples instead of 64.
            for rank in ranks:
                rank.sampler.set_epoch(epoch)
            if ranks[0].sampler.shares != [32, 32]:
                self.assertEqual(epoch, STEPS + 1)
                return
        self.fail("shares have not changed")

    def test_a_program_tells_its_time(self) -> None:
        ranks = self._ranks(1, 1)
        for _ in range(STEPS + 1):
            for rank, seconds in zip(ranks, (0.064, 0.032)):
                next(iter(rank.sampler))
                rank.sampler.note_own_time(seconds)
            _end_step(ranks)
        self.assertEqual(ranks[0].sampler.shares, [21, 43])

    def test_a_time_that_is_none_is_refused(self) -> None:
        for seconds in (-1.0, float("nan"), float("inf")):
            with self.assertRaisesRegex(talweg.InvalidArgument, "seconds of one step's work"):
                _sampler(10, 2).note_own_time(seconds)

    def test_a_rank_that_cannot_tell_warns_once(self) -> None:
        [rank] = self._ranks(1)
        with mock.patch.object(rank, "take_ns", return_value=(None, 5)):
            self._steps([rank], 16 * STEPS - 1)
            with self.assertWarnsRegex(RuntimeWarning, "note_own_time"):
                self._steps([rank], 1)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self._steps([rank], 17 * STEPS)

    def test_local_steps_have_a_time_now_and_then(self) -> None:
        """A rank with local steps pushes in every tenth step alone."""
        [rank] = self._ranks(1, count=10**6)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(20 * STEPS):
                time = int(rank.step_ms * _MS) if step % 10 == 0 else None
                with mock.patch.object(rank, "take_ns", return_value=(time, 5)):
                    self._steps([rank], 1)

    def test_samplers_of_one_state_share_the_stopwatch(self) -> None:
        for names in (("train", "val"), ("val", "train")):
            with self.subTest(first=names[0]):
                samplers = {name: _sampler(1000, 2) for name in names}
                state = talweg.State(**cast(Any, samplers))
                rank = _Rank((0, 0), samplers["train"], 1.0)
                samplers["val"].stopwatch = rank
                _deal([rank])
                steps = iter(samplers["train"])
                for _ in range(STEPS + 1):
                    next(steps)
                    told = dict(zip(names, state.own_times()))
                    for sampler in samplers.values():
                        sampler.end_step(None)
                self.assertEqual(told, {"train": (_MS, 2 * _MS), "val": (0, 0)})

    def test_two_batches_in_one_step_have_no_time(self) -> None:
        samplers = [_sampler(1000, 2), _sampler(1000, 2)]
        state = talweg.State(a=samplers[0], b=samplers[1])
        rank = _Rank((0, 0), samplers[0], 1.0)
        samplers[1].stopwatch = rank
        steps = [iter(sampler) for sampler in samplers]
        for _ in range(STEPS + 1):
            for step in steps:
                next(step)
            told = state.own_times()
            for sampler in samplers:
                sampler.end_step(None)
        self.assertEqual(told, [(0, 0), (0, 0)])

    def test_what_does_not_fit_is_refused(self) -> None:
        for options, text in (
            ({"batch_size_max": 8}, "balance=True"),
            ({"balance": True, "batch_size_max": 3}, "less than batch_size, which is 4"),
        ):
            with self.assertRaisesRegex(talweg.InvalidArgument, text):
                talweg.ElasticSampler(10, 4, **cast(Any, options))

    def test_ranks_that_deal_by_other_rules_are_refused(self) -> None:
        for own, others in (
            (_sampler(10, 4), talweg.ElasticSampler(10, 4)),
            (talweg.ElasticSampler(10, 4), _sampler(10, 4)),
            (_sampler(10, 4), _sampler(10, 4, most=5)),
        ):
            state, other = talweg.State(sampler=own), talweg.State(sampler=others)
            payload = memoryview(bytearray(b"".join(other.pack())))
            with self.assertRaisesRegex(talweg.Mismatch, "give every rank the same"):
                state.unpack(payload)

    def test_the_loader_drops_what_it_has_read_ahead(self) -> None:
        numbers = torch.arange(4096)
        for options in ({}, {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": True}):
            with self.subTest(options=options):
                ranks = self._ranks(1, 3, count=len(numbers), batch=8)
                loaders = [
                    iter(
                        talweg.torch.ElasticLoader(
                            TensorDataset(numbers), rank.sampler, **cast(Any, options)
                        )
                    )
                    for rank in ranks
                ]
                taken: Counter[int] = Counter()
                sizes = set()
                while ranks[0].sampler.left:
                    batches = [next(loader)[0].tolist() for loader in loaders]
                    own = [rank.sampler.own_samples for rank in ranks]
                    sizes.add(tuple(own))
                    for batch, count in zip(batches, own):
                        taken.update(batch[:count])
                    _end_step(ranks)
                self.assertEqual(taken, Counter(range(len(numbers))))
                self.assertEqual(sizes, {(8, 8), (12, 4)})


class _Connection:
    """The calls that OwnTime stands before. Each takes some time."""

    def __init__(self) -> None:
        self.now = 1000
        self.inner: Any = None

    def _take(self, time: int) -> int:
        self.now += time
        if self.inner is not None:
            inner, self.inner = self.inner, None
            inner()
        return time

    def push_pull(self, time: int) -> int:
        return self._take(time)

    push_parts = push_places = wait = wait_parts = wait_places = barrier = exchange = push_pull


class OwnTimeTest(unittest.TestCase):
    def setUp(self) -> None:
        self.connection = _Connection()
        client = cast(Any, SimpleNamespace(connection=self.connection))
        self.watch = OwnTime(client, lambda: self.connection.now)
        self.watch.begin()

    def test_from_a_batch_to_the_last_push_without_waits(self) -> None:
        self.connection.now += 100
        self.assertEqual(self.connection.push_pull(1), 1)
        self.connection.wait(1000)
        self.connection.now += 10
        self.connection.push_parts(2)
        self.connection.wait_parts(1000)
        self.connection.now += 5
        self.assertEqual(self.watch.take_ns(), (113, 2118))
        self.assertEqual(self.watch.take_ns()[0], None)

    def test_an_exchange_waits_after_its_push(self) -> None:
        self.connection.now += 100
        self.connection.exchange(1000)
        self.assertEqual(self.watch.take_ns()[0], 100)
        self.connection.now += 10
        self.connection.push_places(1)
        self.assertEqual(self.watch.take_ns()[0], 111)

    def test_a_wait_within_a_wait_counts_once(self) -> None:
        def inner() -> None:
            self.connection.wait(50)
            self.connection.push_pull(7)

        self.connection.now += 100
        self.connection.inner = inner
        self.connection.barrier(1000)
        self.assertEqual(self.watch.take_ns()[0], 100)  # It was pushed during the wait.
        self.connection.push_pull(3)
        self.assertEqual(self.watch.take_ns()[0], 103)

    def test_waits_that_fail_count(self) -> None:
        def inner() -> None:
            raise talweg.Aborted("gone")

        self.connection.inner = inner
        with self.assertRaises(talweg.Aborted):
            self.connection.wait_places(1000)
        self.connection.now += 4
        self.connection.push_pull(1)
        self.assertEqual(self.watch.take_ns()[0], 5)

    def test_waits_of_other_threads_do_not_count(self) -> None:
        thread = threading.Thread(target=self.connection.wait, args=(1000,))
        thread.start()
        thread.join()
        self.connection.push_pull(1)
        self.assertEqual(self.watch.take_ns()[0], 1001)

    def test_a_connection_ends_with_its_last_reference(self) -> None:
        """Its memory is freed then."""
        gone = weakref.ref(self.connection)
        watch, self.watch = self.watch, cast(Any, None)
        watch._now_ns = lambda: 0
        gc.disable()
        self.addCleanup(gc.enable)
        del self.connection
        self.assertIsNone(gone())


class ElasticTest(unittest.TestCase):
    def test_nobody_else_pays(self) -> None:
        """Without balance=True nothing stands before the connection, and the round is as before."""
        talweg.init()
        try:
            state = talweg.State(sampler=talweg.ElasticSampler(4, 2))
            state.begin()
            self.assertEqual((state.balanced_samplers, state.own_times()), (0, []))
            self.assertNotIn("wait", vars(_client.current().connection))
            self.assertIsNone(state.sampler.stopwatch)
            self.assertEqual(set(state.sampler.state_dict()), {"epoch", "left", "count"})
        finally:
            talweg.shutdown()

    def test_a_program_that_nobody_has_launched(self) -> None:
        talweg.init()
        try:
            state = talweg.State(sampler=_sampler(100, 2))
            state.begin()
            taken = []
            for batch in state.sampler:
                taken += batch
                state.end_step()
            self.assertEqual(sorted(taken), list(range(100)))
        finally:
            talweg.shutdown()


if __name__ == "__main__":
    unittest.main()
