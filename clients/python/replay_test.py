# SPDX-License-Identifier: Apache-2.0
"""Steps that are recorded at some ranks, and made again at another."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import talweg
import talweg.torch
import torch
from talweg._collectives import objects
from talweg._elastic import stripes
from talweg._elastic.replay import Call
from torch import nn

_Make = Callable[[Any], torch.optim.Optimizer]

_OPTIMIZERS: dict[str, _Make] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
}


class _Program:
    """A rank's program: clipping, a schedule, BatchNorm, a frozen layer, one that is left out."""

    def __init__(self, make: _Make, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(7, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 5), nn.Linear(5, 5)
        )
        self.model[3].bias.requires_grad_(False)
        self.optimizer = make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.state = talweg.torch.Elastic(
            self.model, self.optimizer, scheduler=self.scheduler, step=0, seen=torch.zeros(2)
        )

    def step(self) -> None:
        generator = torch.Generator().manual_seed(self.state.step)
        inputs = torch.randn(16, 7, generator=generator)
        self.optimizer.zero_grad()
        layers = self.model if self.state.step % 3 else self.model[:-1]
        layers(inputs).square().mean().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        if self.state.step % 4 != 3:  # As a GradScaler leaves steps out.
            self.optimizer.step()
        self.scheduler.step()
        self.state.seen += 1
        self.state.step += 1


def _whole(calls: list[Call]) -> np.ndarray:
    return np.concatenate([call.stripe for call in calls])


class _NumpyProgram:
    """A rank's program without a framework: momentum, a schedule, two calls in some steps."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.state = talweg.State(
            apply=self.descend,
            weights={"a": draw.random((7, 5)), "b": draw.random(3, np.float32)},
            momentum=[draw.random((7, 5))],
            frozen=draw.random(1000),
            sampler=talweg.ElasticSampler(99, batch_size=3, seed=1),
            mixed={"values": draw.random(4), "seen": 0},
            rate=0.1,
            step=0,
        )
        self.moves = 0

    def descend(self, state: talweg.State, gradient: Any, *, other: Any = None) -> str:
        """It writes to what it is given, and reads a number that the program changes."""
        gradient *= state.rate
        state.momentum[0] *= 0.9
        state.momentum[0] += gradient
        state.weights["a"] -= state.momentum[0]
        if other is not None:
            state.weights["b"] -= other[1]
        self.moves += 1
        return "done"

    def step(self) -> None:
        state = self.state
        draw = np.random.default_rng(state.step)
        assert state.apply(draw.random((7, 5))) == "done"
        if state.step % 3 == 0:
            # In a Fortran order, and no array of its own.
            state.apply(draw.random((5, 7)).T, other=("b", draw.random(6, np.float32)[::2]))
        state.rate *= 0.97
        state.mixed["seen"] += 1
        state.mixed["values"] += state.rate
        next(iter(state.sampler))
        state.sampler.end_step(None)
        state.step += 1


def _hand_over(survivors: Sequence[Any], joiner: Any, steps: int, slices: int = 0) -> None:
    """As survivors and a joiner do it, without a job.

    `slices`: so many of each stripe a survivor's thread has copied before the step that follows.
    """
    replays = [survivor.state.replay() for survivor in survivors]
    taker = joiner.state.replay()
    count = len(survivors)
    given = [replay.snapshot() for replay in replays]
    sizes = [buffer.size for buffer in given[0].buffers]
    copies = []
    for place, snapshot in enumerate(given):
        begin, end = stripes.stripe_of(sum(sizes), place, count)
        copies.append(stripes.Copying(snapshot.buffers, begin, end, steady=snapshot.steady))
        for _ in range(slices):
            copies[-1].copy_some()
    recordings = [
        replay.record(place, count, copying.finish)
        for place, (replay, copying) in enumerate(zip(replays, copies))
    ]
    made: list[list[list[Call]]] = []
    for _ in range(steps):
        for survivor in survivors:
            survivor.step()
        made.append([recording.take() for recording in recordings])
    buffers: list[np.ndarray] = [np.zeros(size, np.uint8) for size in sizes]
    for place, copying in enumerate(copies):
        begin, _ = stripes.stripe_of(sum(sizes), place, count)
        if steps == 0:
            copying.finish()
        stripes.copy_in(buffers, begin, copying.stripe)
    taker.load(given[0].header, buffers)
    for taken in made:
        for calls in zip(*taken):
            taker.apply(calls[0].header, _whole(list(calls)))
    assert not any(recording.problem for recording in recordings)
    for recording in recordings:
        recording.close()
    rest = b"".join(replays[0].rest())
    taker.load_rest(memoryview(bytearray(rest)))


def _values(program: _Program) -> list[torch.Tensor]:
    optimizer = program.optimizer.state_dict()
    state = [value for each in optimizer["state"].values() for value in each.values()]
    return [*program.model.state_dict().values(), program.state.seen, *map(torch.as_tensor, state)]


class ReplayTest(unittest.TestCase):
    def _check_equal(self, one: _Program, other: _Program) -> None:
        self.assertEqual(len(_values(one)), len(_values(other)))
        for here, there in zip(_values(one), _values(other)):
            self.assertTrue(torch.equal(here, there), (here, there))
        self.assertEqual(one.state.step, other.state.step)
        self.assertEqual(one.scheduler.state_dict(), other.scheduler.state_dict())
        groups = [program.optimizer.state_dict()["param_groups"] for program in (one, other)]
        self.assertEqual(groups[0], groups[1])

    def test_equal_bits(self) -> None:
        for name, make in _OPTIMIZERS.items():
            for count in (1, 3):
                with self.subTest(optimizer=name, survivors=count):
                    survivors = [_Program(make, seed=1) for _ in range(count)]
                    joiner = _Program(make, seed=2)
                    for _ in range(3):
                        for survivor in survivors:
                            survivor.step()
                    _hand_over(survivors, joiner, steps=9)
                    self._check_equal(survivors[0], joiner)
                    for program in (survivors[0], joiner):  # And they go on alike.
                        program.step()
                    self._check_equal(survivors[0], joiner)

    def test_a_thread_has_copied_some(self) -> None:
        make = _OPTIMIZERS["adam"]
        for slices in range(5):
            survivors, joiner = [_Program(make, seed=1) for _ in range(2)], _Program(make, seed=2)
            for survivor in survivors:
                survivor.step()
            _hand_over(survivors, joiner, steps=3, slices=slices)
            self._check_equal(survivors[0], joiner)

    def test_the_end_of_a_step_copies_nothing(self) -> None:
        """What the thread has copied until the optimizer's step nobody waits for."""
        survivor = _Program(_OPTIMIZERS["adam"], seed=1)
        survivor.step()
        for is_copied in (False, True):
            _, buffers, steady = survivor.state.replay().snapshot()
            total = sum(buffer.size for buffer in buffers)
            room: np.ndarray = np.full(total, 77, np.uint8)
            copying = stripes.Copying(buffers, 0, total, room, steady)
            self.assertTrue((copying.stripe == 77).all())
            while is_copied and not copying.is_over:
                copying.copy_some()
            wanted = np.concatenate(buffers)
            recording = survivor.state.replay().record(0, 1, copying.finish)
            survivor.step()
            recording.close()
            self.assertFalse(np.array_equal(wanted, np.concatenate(buffers)))
            np.testing.assert_array_equal(copying.stripe, wanted)
            self.assertEqual(copying.hurried_bytes, 0 if is_copied else total)

    def test_a_digest_is_of_what_was_there_before_the_step(self) -> None:
        for with_thread in (True, False):
            with self.subTest(with_thread=with_thread):
                program = _Program(_OPTIMIZERS["adam"], seed=1)
                wanted = program.state.digest()
                hashing = program.state.hashing()
                assert hashing is not None
                if with_thread:
                    hashing.start()
                    self.assertEqual(hashing.finish(), wanted)
                program.step()
                self.assertNotEqual(program.state.digest(), wanted)
                self.assertEqual(hashing.finish(), wanted)
                hashing.close()
                program.step()

    def test_a_state_that_changes_at_any_time_is_hashed_at_once(self) -> None:
        model = nn.Linear(3, 1)
        self.assertIsNone(talweg.torch.Elastic(model).hashing())
        self.assertIsNone(talweg.State(step=0).hashing())

    def test_hooks_are_not_called_again(self) -> None:
        make = _OPTIMIZERS["adam"]
        survivor, joiner = _Program(make, seed=1), _Program(make, seed=2)
        calls: list[str] = []
        joiner.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        joiner.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        _hand_over([survivor], joiner, steps=2)
        self.assertEqual(calls, [])
        joiner.step()
        self.assertEqual(calls, ["before", "after"])

    def test_what_hooks_before_the_step_do_is_recorded(self) -> None:
        def double(optimizer: Any, *_: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(2)

        make = _OPTIMIZERS["momentum"]
        survivor, joiner = _Program(make, seed=1), _Program(make, seed=2)
        for program in (survivor, joiner):
            program.optimizer.register_step_pre_hook(double)
        _hand_over([survivor], joiner, steps=2)
        self._check_equal(survivor, joiner)

    def test_a_model_of_another_shape_is_refused(self) -> None:
        make = _OPTIMIZERS["adam"]
        survivor, joiner = _Program(make, seed=1), _Program(make, seed=2)
        joiner.model[0] = nn.Linear(7, 32)
        with self.assertRaisesRegex(talweg.Mismatch, "'model.0.weight' has shape"):
            _hand_over([survivor], joiner, steps=0)

    def test_what_cannot_be_replayed(self) -> None:
        model = nn.Linear(3, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)

        def problem(optimizer: torch.optim.Optimizer | None, **values: Any) -> str | None:
            found: str | None = talweg.torch.Elastic(model, optimizer, **values).replay().problem()
            return found

        self.assertIsNone(problem(sgd))
        self.assertIn("no optimizer", problem(None) or "")
        self.assertIn("evaluates the loss", problem(torch.optim.LBFGS(model.parameters())) or "")
        self.assertIn("several optimizers", problem(sgd, second=sgd) or "")
        other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        self.assertIn("the model has not", problem(other) or "")
        self.assertIsNone(talweg.State(step=0).replay())

    def test_what_cannot_be_recorded(self) -> None:
        model = nn.Embedding(5, 2, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recording = talweg.torch.Elastic(model, optimizer).replay().record(0, 1, lambda: None)
        model(torch.tensor([1])).sum().backward()
        optimizer.step()
        self.assertIn("sparse", recording.problem or "")
        self.assertEqual(recording.take(), [])
        dense = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
        recording = talweg.torch.Elastic(dense, optimizer).replay().record(0, 1, lambda: None)
        optimizer.step(lambda: torch.zeros(()))
        self.assertIn("closure", recording.problem or "")


class StateReplayTest(unittest.TestCase):
    def _check_equal(self, one: _NumpyProgram, other: _NumpyProgram) -> None:
        mine, theirs = one.state, other.state
        self.assertEqual(mine.digest(), theirs.digest())
        np.testing.assert_array_equal(mine.frozen, theirs.frozen)
        np.testing.assert_array_equal(mine.mixed["values"], theirs.mixed["values"])
        self.assertEqual(
            (mine.step, mine.rate, mine.mixed["seen"]),
            (theirs.step, theirs.rate, theirs.mixed["seen"]),
        )
        self.assertEqual(mine.sampler.state_dict(), theirs.sampler.state_dict())

    def test_equal_bits(self) -> None:
        for count in (1, 3):
            with self.subTest(survivors=count):
                survivors = [_NumpyProgram(seed=1) for _ in range(count)]
                joiner = _NumpyProgram(seed=2)
                for program in survivors:
                    program.state.sampler.deal(0, 1)
                    for _ in range(4):
                        program.step()
                _hand_over(survivors, joiner, steps=9)
                self.assertEqual(joiner.moves, survivors[0].moves - 6)
                self._check_equal(survivors[0], joiner)
                self.assertEqual(survivors[0].state._recorders, [])
                joiner.state.sampler.deal(0, 1)
                for program in (survivors[0], joiner):  # And they go on alike.
                    program.step()
                self._check_equal(survivors[0], joiner)

    def test_what_only_the_hook_changes_is_replayed(self) -> None:
        program = _NumpyProgram(seed=1)
        replay = program.state.replay()
        assert replay is not None
        rest = objects.from_pieces(memoryview(bytearray(b"".join(replay.rest()))))
        self.assertEqual(sorted(rest), ["mixed", "rate", "sampler", "step"])

    def test_arrays_lie_where_they_did(self) -> None:
        survivor, joiner = _NumpyProgram(seed=1), _NumpyProgram(seed=2)
        survivor.state.sampler.deal(0, 1)
        frozen = joiner.state.frozen
        _hand_over([survivor], joiner, steps=1)
        self.assertIs(joiner.state.frozen, frozen)

    def test_what_cannot_be_recorded(self) -> None:
        state = talweg.State(apply=lambda *_: None, weights=np.zeros(3))
        replay = state.replay()
        assert replay is not None
        recording = replay.record(0, 1, lambda: None)
        state.apply(lambda: None)
        self.assertIn("cannot be pickled", recording.problem or "")
        self.assertEqual(recording.take(), [])
        recording.close()
        state.apply(lambda: None)

    def test_without_a_hook(self) -> None:
        with self.assertRaisesRegex(talweg.InvalidArgument, "has no function to call"):
            talweg.State(step=0).apply(1)
        with self.assertRaisesRegex(talweg.InvalidArgument, "apply=3.*is a function"):
            talweg.State(apply=3)  # type: ignore[arg-type]
        with self.assertRaisesRegex(talweg.InvalidArgument, "their optimizer"):
            talweg.torch.Elastic(nn.Linear(2, 2), apply=print)


if __name__ == "__main__":
    unittest.main()
