# SPDX-License-Identifier: Apache-2.0
"""talweg.ElasticSampler and talweg.State, without a job."""

from __future__ import annotations

import os
import random
import tempfile
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import talweg
import talweg.torch
import torch
from talweg import _client
from talweg._client.local import LocalConnection
from talweg._collectives import objects
from talweg._elastic import outlive
from talweg._elastic.membership import _NOT_SYNCHRONIZED, membership_of
from talweg._elastic.views import Member, View, change_between
from talweg._library import native


def _sampler(count: int, batch_size: int) -> talweg.ElasticSampler:
    return talweg.ElasticSampler(count, batch_size=batch_size, seed=7)


def _joined(pieces: Sequence[bytes | memoryview]) -> memoryview:
    """As a joiner gets them."""
    return memoryview(bytearray(b"".join(pieces)))


def _drawn(generator: Any) -> Any:
    """What it gives next."""
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator).tolist()
    if isinstance(generator, np.random.BitGenerator):
        return generator.random_raw(3).tolist()
    return [generator.random() for _ in range(3)]


class SamplerTest(unittest.TestCase):
    def test_each_sample_once_whoever_comes_and_goes(self) -> None:
        for seed in range(200):
            with self.subTest(seed=seed):
                self._live(random.Random(seed))

    def _live(self, draw: random.Random) -> None:
        """Ranks in lockstep: what the survivors have committed, and what the lost have."""
        count, batch = draw.randrange(0, 90), draw.randrange(1, 6)
        ranks = [_sampler(count, batch) for _ in range(draw.randrange(1, 6))]
        taken: Counter[int] = Counter()
        while True:
            for place, sampler in enumerate(ranks):
                sampler.deal(place, len(ranks))
            self.assertEqual({each.left for each in ranks}, {ranks[0].left})
            batches = [next(iter(sampler), None) for sampler in ranks]
            if batches[0] is None:
                self.assertEqual(batches, [None] * len(ranks))
                break
            for each in batches:
                assert each is not None
                self.assertLessEqual(len(each), batch)
            # Some are lost in this step, of which some have ended it.
            lost = {place for place in range(1, len(ranks)) if draw.random() < 0.1}
            ended = [place not in lost or draw.random() < 0.5 for place in range(len(ranks))]
            for place, each in enumerate(batches):
                if ended[place]:
                    taken.update(each or [])
            for sampler in ranks:
                sampler.end_step(ended)
            ranks = [each for place, each in enumerate(ranks) if place not in lost]
            if draw.random() < 0.2:
                joiner = _sampler(count, batch)
                joiner.load_state_dict(ranks[0].state_dict())
                ranks.insert(draw.randrange(0, len(ranks) + 1), joiner)
        self.assertEqual(taken, Counter(range(count)))

    def test_the_last_step_is_shared(self) -> None:
        ranks = [_sampler(7, 2) for _ in range(3)]
        for place, sampler in enumerate(ranks):
            sampler.deal(place, 3)
        sizes = []
        for _ in range(2):
            sizes.append([len(next(iter(sampler))) for sampler in ranks])
            self.assertEqual(ranks[0].step_samples, sum(sizes[-1]))
            for sampler in ranks:
                sampler.end_step(None)
        self.assertEqual(sizes, [[2, 2, 2], [1, 0, 0]])

    def test_a_batch_of_a_step_that_nobody_ended_comes_again(self) -> None:
        sampler = _sampler(10, 3)
        first = next(iter(sampler))
        self.assertEqual(next(iter(sampler)), first)
        self.assertEqual(sampler.left, 10)
        with self.assertRaisesRegex(talweg.InvalidArgument, "call end_step"):
            list(sampler)

    def test_epochs_have_orders_of_their_own(self) -> None:
        sampler = _sampler(100, 100)
        first = next(iter(sampler))
        sampler.set_epoch(1)
        second = next(iter(sampler))
        self.assertNotEqual(first, second)
        self.assertEqual(sorted(second), list(range(100)))

    def test_other_data_is_refused(self) -> None:
        with self.assertRaisesRegex(talweg.InvalidArgument, "this rank has 10 samples"):
            _sampler(10, 1).load_state_dict(_sampler(11, 1).state_dict())
        with self.assertRaisesRegex(talweg.InvalidArgument, "must be positive"):
            talweg.ElasticSampler(10, batch_size=0)


class _Counting(torch.nn.Linear):
    def __init__(self, calls: int) -> None:
        super().__init__(2, 2)
        self.calls = calls

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class StateTest(unittest.TestCase):
    def test_a_joiner_takes_the_values_where_they_lie(self) -> None:
        weights: np.ndarray = np.zeros((2, 3), np.float32)
        state = talweg.State(weights=weights, step=0, sampler=_sampler(10, 2))
        other = talweg.State(
            weights=np.arange(6, dtype=np.float32).reshape(2, 3), step=9, sampler=_sampler(10, 2)
        )
        next(iter(other.sampler))
        other.sampler.end_step(None)
        self.assertNotEqual(state.digest(), other.digest())
        state.unpack(_joined(other.pack()))
        self.assertEqual(state.step, 9)
        np.testing.assert_array_equal(weights, other.weights)
        self.assertEqual(state.digest(), other.digest())
        self.assertEqual(state.sampler.state_dict(), other.sampler.state_dict())

    def test_a_joiner_takes_generators_where_they_are(self) -> None:
        """The program draws from them by names of its own."""
        makes: tuple[Callable[[int], Any], ...] = (
            random.Random,
            np.random.default_rng,
            np.random.RandomState,
            np.random.PCG64,
            lambda seed: torch.Generator().manual_seed(seed),
        )
        for make in makes:
            generator, theirs = make(1), make(2)
            with self.subTest(kind=type(generator).__name__):
                kinds: tuple[Callable[..., Any], ...] = (talweg.State, talweg.torch.Elastic)
                for kind in kinds:
                    state, other = kind(draw=generator), kind(draw=theirs)
                    _drawn(theirs)
                    state.unpack(_joined(other.pack()))
                    self.assertIs(state.draw, generator)
                    expected = _drawn(theirs)
                    self.assertEqual(_drawn(generator), expected)
                    state.save()
                    expected = _drawn(theirs)
                    self.assertEqual(_drawn(generator), expected)
                    state.restore()
                    self.assertIs(state.draw, generator)
                    self.assertEqual(_drawn(generator), expected)
                    _drawn(theirs)

    def test_generators_of_other_kinds_are_refused(self) -> None:
        state = talweg.State(draw=np.random.Generator(np.random.PCG64(1)))
        other = talweg.State(draw=np.random.Generator(np.random.MT19937(1)))
        with self.assertRaisesRegex(talweg.Mismatch, "'draw' is a Generator of PCG64.*MT19937"):
            state.unpack(_joined(other.pack()))

    def test_a_joiner_takes_a_scaler_where_it_is(self) -> None:
        scaler, theirs = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (4.0, 32.0))
        state, other = (talweg.torch.Elastic(scaler=each) for each in (scaler, theirs))
        state.unpack(_joined(other.pack()))
        self.assertIs(state.scaler, scaler)
        self.assertEqual(scaler.get_scale(), 32.0)

    def test_tensors_without_a_model(self) -> None:
        weights, theirs = torch.zeros(3), torch.arange(3.0)
        state = talweg.torch.Elastic(weights=weights, counts=np.zeros(2), step=0)
        other = talweg.torch.Elastic(weights=theirs, counts=np.zeros(2), step=0)
        self.assertIn("no model", state.replay().problem() or "")
        self.assertIsNone(state.hashing())
        self.assertNotEqual(state.digest(), other.digest())
        state.unpack(_joined(other.pack()))
        self.assertTrue(torch.equal(weights, theirs))
        self.assertEqual(state.digest(), other.digest())
        other.counts[1] = 1
        self.assertNotEqual(state.digest(), other.digest())

    def test_a_model_with_state_that_is_no_tensor(self) -> None:
        mine, theirs = _Counting(1), _Counting(2)
        state, other = (talweg.torch.Elastic(each) for each in (mine, theirs))
        state.unpack(_joined(other.pack()))
        self.assertEqual(mine.calls, 2)
        with self.assertRaisesRegex(
            talweg.Mismatch, "'model._extra_state' is not a tensor.*not there"
        ):
            state.unpack(_joined(talweg.torch.Elastic(torch.nn.Linear(2, 2)).pack()))

    def test_a_joiner_gets_parameter_groups_that_were_added(self) -> None:
        def state(groups: int, *others: torch.nn.Module) -> Any:
            model = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))
            optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
            added = [model[1], *others][: groups - 1]
            for each in added:
                optimizer.add_param_group({"params": list(each.parameters()), "lr": 0.2})
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            return talweg.torch.Elastic(model, optimizer)

        survivor, joiner = state(2), state(1)
        joiner.unpack(_joined(survivor.pack()))
        groups = joiner.optimizer.param_groups
        self.assertEqual([group["lr"] for group in groups], [0.1, 0.2])
        self.assertEqual(groups[1]["params"], list(joiner.model[1].parameters()))
        for own, other in zip(joiner.model.parameters(), survivor.model.parameters()):
            wanted = survivor.optimizer.state[other]["momentum_buffer"]
            self.assertTrue(torch.equal(joiner.optimizer.state[own]["momentum_buffer"], wanted))
        with self.assertRaisesRegex(talweg.Mismatch, "has 2 parameter groups at this rank, and 1 "):
            survivor.unpack(_joined(state(1).pack()))
        unknown = state(3, torch.nn.Linear(2, 2))
        with self.assertRaisesRegex(talweg.Mismatch, "no model .*give Elastic.* all models"):
            survivor.unpack(_joined(unknown.pack()))

    def test_values_that_are_sharded_are_refused(self) -> None:
        """No rank has the whole of them to give to a joiner."""
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
        from torch.distributed.optim import ZeroRedundancyOptimizer

        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        self.addCleanup(torch.distributed.destroy_process_group)

        def layers() -> torch.nn.Sequential:
            return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = layers()
        state = talweg.torch.Elastic(model)
        fully_shard(model[1], mesh=mesh)
        with self.assertRaisesRegex(talweg.InvalidArgument, "'model.1.weight' is a DTensor"):
            talweg.torch.Elastic(model)
        with self.assertRaisesRegex(talweg.InvalidArgument, "torch.distributed.checkpoint"):
            state.begin()
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        with self.assertRaisesRegex(talweg.InvalidArgument, "'optimizer.param_groups.0.*DTensor"):
            talweg.torch.Elastic(None, optimizer)
        with self.assertRaisesRegex(talweg.InvalidArgument, "'weights' is a DTensor"):
            talweg.torch.Elastic(weights=model[1].weight)
        zero = ZeroRedundancyOptimizer(layers().parameters(), torch.optim.Adam)
        with self.assertRaisesRegex(talweg.InvalidArgument, "'optimizer' is a ZeroRedundancyOpt"):
            talweg.torch.Elastic(layers(), zero)
        with self.assertWarns(UserWarning):  # It shards nothing, as there is one rank.
            fsdp = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"))
        talweg.torch.Elastic(fsdp)
        fsdp.sharding_strategy = ShardingStrategy.FULL_SHARD
        with self.assertRaisesRegex(talweg.InvalidArgument, "'model' is a FullyShardedDataPar"):
            talweg.torch.Elastic(fsdp)

    def test_arrays_travel_as_they_lie(self) -> None:
        large: np.ndarray = np.arange(5000, dtype=np.float64)
        value = {"a": large, "b": large[::2], "none": np.empty(0), "text": "x" * 77}
        pieces = objects.pieces_of(value)
        addresses = [np.frombuffer(piece, np.uint8).ctypes.data for piece in pieces if len(piece)]
        self.assertIn(large.ctypes.data, addresses)
        given = objects.from_pieces(_joined(pieces))
        self.assertEqual((set(given), given["text"]), (set(value), value["text"]))
        for name in ("a", "b", "none"):
            np.testing.assert_array_equal(given[name], value[name])
        given["a"][0] = 7  # Its own to write.

    def test_another_program_is_refused(self) -> None:
        state = talweg.State(weights=np.zeros(3))
        with self.assertRaisesRegex(talweg.Mismatch, "'weights' is float64.3. at this rank"):
            state.unpack(_joined(talweg.State(weights=np.zeros(4)).pack()))
        with self.assertRaisesRegex(talweg.Mismatch, "lacks .'step'."):
            state.unpack(_joined(talweg.State(weights=np.zeros(3), step=1).pack()))

    def test_values_are_named_once(self) -> None:
        with self.assertRaisesRegex(AttributeError, "no value 'epoch'"):
            talweg.State(step=0).epoch = 1
        with self.assertRaisesRegex(talweg.InvalidArgument, "another name"):
            talweg.State(end_step=1)

    def test_a_program_that_nobody_has_launched(self) -> None:
        talweg.init()
        try:
            state = talweg.State(step=0, sampler=_sampler(4, 2))
            self.assertFalse(state.begin())
            for _ in state.sampler:
                state.step += 1
                self.assertIsNone(state.end_step())
            self.assertEqual(state.step, 2)
            self.assertFalse(talweg.is_joiner())
            self.assertIsNone(talweg.end_step())
        finally:
            talweg.shutdown()

    def test_what_run_tells_the_launcher(self) -> None:
        """A file is there while run() is, and has a word when the rank has been in the job."""
        with tempfile.TemporaryDirectory() as directory:
            mark = Path(directory, "outlives")
            talweg.init()
            self.addCleanup(talweg.shutdown)
            with mock.patch.dict(os.environ, TALWEG_RUN_OUTLIVES=str(mark)):
                state = talweg.State(step=0)
                state.begin()
                self.assertFalse(mark.exists())
                with outlive.outliving():
                    self.assertEqual(mark.read_text(), "")
                self.assertEqual(state.run(lambda _: mark.read_text()), "begun\n")
            self.assertFalse(mark.exists())

    def test_a_launcher_that_cannot_be_told(self) -> None:
        """A full disk is one warning, and the training goes on."""
        talweg.init()
        self.addCleanup(talweg.shutdown)
        state = talweg.State(step=0)
        with tempfile.TemporaryDirectory() as directory:
            missing, full = Path(directory, "missing", "mark"), Path(directory, "full")
            full.symlink_to("/dev/full")
            for mark in (missing, full):
                with (
                    mock.patch.dict(os.environ, TALWEG_RUN_OUTLIVES=str(mark)),
                    mock.patch.object(outlive, "_has_warned", False),
                    self.assertWarnsRegex(RuntimeWarning, "cannot be told") as warned,
                ):
                    for _ in range(2):
                        self.assertEqual(state.run(lambda _: "done"), "done")
                self.assertEqual(len(warned.warnings), 1, mark)

    def test_a_step_that_was_begun_is_begun_again(self) -> None:
        """By all ranks, with the values that one of them gives to the others in begin()."""
        talweg.init()
        try:
            state, other = (talweg.State(sampler=_sampler(10, 3)) for _ in range(2))
            state.begin()
            first = next(iter(state.sampler))
            state.begin()
            other.unpack(_joined(state.pack()))
            self.assertEqual(next(iter(other.sampler)), first)
            self.assertEqual(next(iter(state.sampler)), first)
        finally:
            talweg.shutdown()

    def test_a_copy_of_a_step_has_what_its_lost_ranks_did_not_end(self) -> None:
        """All may have to go back to it later: no sample is forgotten."""
        state = talweg.State(sampler=_sampler(10, 2), step=0)
        state.sampler.deal(0, 2)
        taken = list(next(iter(state.sampler)))
        state.step = 1
        state.save()
        state._commit([True, False])
        next(iter(state.sampler))  # The step that all give up.
        state.restore()
        self.assertEqual(state.step, 1)
        state.sampler.deal(0, 1)
        for batch in state.sampler:
            taken += batch
            state._commit(None)
        self.assertEqual(sorted(taken), list(range(10)))

    def test_a_copy_stays_as_it_is_when_all_have_gone_back_to_it(self) -> None:
        state = talweg.State(sampler=_sampler(6, 2), step=0)
        next(iter(state.sampler))
        state.save()
        state.restore()
        for _ in state.sampler:
            state._commit(None)
        state.restore()
        self.assertEqual(state.sampler.left, 4)

    def test_a_callback_that_raises(self) -> None:
        """The others are called all the same, and samplers are dealt to the ranks that are there."""
        talweg.init()
        try:
            state = talweg.State(sampler=_sampler(10, 3))
            state.begin()
            client = _client.current()
            seen: list[Any] = []
            membership = membership_of(client)
            two = View(1, (Member(0, 0, range(1)), Member(1, 0, range(1, 2))), 0, 2)

            def let_one_in(_: Any) -> Any:
                before, membership._agreement.view = membership.view, two
                client.size = two.size
                change = change_between(before, two)
                membership._tell(change)
                return change

            def fail(_: Any) -> None:
                raise ValueError("no room for that many")

            talweg.on_view_change(fail)
            talweg.on_view_change(seen.append)
            with (
                mock.patch.object(membership, "_end_one_step", let_one_in),
                self.assertRaisesRegex(ValueError, "no room for that many"),
            ):
                state.end_step()
            self.assertEqual(seen, [state.change])
            next(iter(state.sampler))
            self.assertEqual(state.sampler.step_samples, 2 * 3)
        finally:
            talweg.shutdown()

    def test_a_joiner_may_push_nothing(self) -> None:
        connection = LocalConnection()
        connection.refusal = _NOT_SYNCHRONIZED
        with self.assertRaisesRegex(talweg.NotSynchronized, "call begin.. of a talweg.State"):
            native.Connection.barrier(connection)


if __name__ == "__main__":
    unittest.main()
