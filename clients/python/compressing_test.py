# SPDX-License-Identifier: Apache-2.0
"""Compressors as users give them, what a rank remembers, and an optimizer that compresses."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
import talweg
import talweg.byteps.torch as bps
import talweg.horovod.torch as hvd
import talweg.torch as tw
import torch
from talweg._declaration import Declaration, DType, Encoding, Op
from talweg._exchange.adapter import Parameter
from talweg._exchange.compressing import Compressing, Stand
from talweg.compression import Compression, Dithering, OneBit, RandomK, TopK
from talweg.errors import InvalidArgument
from torch import nn

_HERE = Stand(0, 1)
_ALL = (TopK(0.1), TopK(3), RandomK(0.1), OneBit(), OneBit(scaling=False), Dithering(4))


def _run(it: Compressing, values: np.ndarray, stand: Stand = _HERE, **rate: float) -> np.ndarray:
    sent: np.ndarray = values.astype(np.float32)
    it.compress("a", sent.ctypes.data, sent.size, stand, **rate)
    return sent


def _places(it: Compressing, stand: Stand = _HERE) -> list[int]:
    return list(np.flatnonzero(_run(it, np.ones(200), stand)))


def _with_feedback(compression: Compression) -> Compression:
    return Dithering(4, error_feedback=True) if isinstance(compression, Dithering) else compression


class ValuesTest(unittest.TestCase):
    def test_what_is_refused(self) -> None:
        wrong: list[tuple[Callable[[], Compression], str]] = [
            (lambda: TopK(0), "k is 0"),
            (lambda: TopK(-0.5), "k is -0.5"),
            (lambda: TopK(2.5), "k is 2.5"),
            (lambda: TopK(True), "k is True"),
            (lambda: TopK("1"), "k is '1'"),  # type: ignore[arg-type]
            (lambda: RandomK(float("nan")), "k is nan"),
            (lambda: RandomK(1, seed=-1), "seed is -1"),
            (lambda: RandomK(1, seed=1.0), "seed is 1.0"),  # type: ignore[arg-type]
            (lambda: OneBit(scaling=1), "scaling is 1"),  # type: ignore[arg-type]
            (lambda: OneBit(error_feedback=None), "None"),  # type: ignore[arg-type]
            (lambda: Dithering(0), "is 0; it must be a whole number, 1 to 127"),
            (lambda: Dithering(128), "is 128"),
            (lambda: Dithering(32, levels="natural"), "1 to 31"),
            (lambda: Dithering(4, levels="cubic"), "'linear' or 'natural'"),
            (lambda: Dithering(4, norm="l1"), "'max' or 'l2'"),
            (lambda: TopK(1, bytes_min=-1), "bytes_min is -1"),
        ]
        for make, text in wrong:
            with self.assertRaises(InvalidArgument) as raised:
                make()
            self.assertIn(text, str(raised.exception))

    def test_equal_values_are_equal(self) -> None:
        self.assertEqual(TopK(0.01), TopK(0.01))
        self.assertNotEqual(TopK(0.01), TopK(0.02))
        with self.assertRaises(AttributeError):
            TopK(0.01).k = 1  # type: ignore[misc]

    def test_what_is_compressed(self) -> None:
        it = Compressing(TopK(1))
        self.assertTrue(it.takes(DType.F32, 65536))
        self.assertFalse(it.takes(DType.F32, 65532))
        self.assertFalse(it.takes(DType.BF16, 65536))
        self.assertFalse(Compressing(TopK(1, bytes_min=0)).takes(DType.F32, 0))

    def test_ranks_compare_it(self) -> None:
        texts = {str(Parameter("w", 4, "f32", (1,), Compressing(each).note)) for each in _ALL}
        self.assertEqual(len(texts), len(_ALL))
        self.assertIn("'w' of shape [1], compressed by TopK(k=3", "".join(texts))

    def test_an_encoding_belongs_to_the_declaration(self) -> None:
        plain = Declaration(DType.F32, 8, Op.SUM, 0)
        runs = Declaration(DType.F32, 8, Op.SUM, 0, encoding=Encoding.RUNS)
        self.assertNotEqual(plain.text(), runs.text())
        self.assertNotEqual(str(plain), str(runs))
        self.assertFalse(runs.is_plain)
        self.assertFalse(runs.is_of(DType.F32, 8, Op.SUM, 0))
        self.assertFalse(plain.is_for(runs))


class MemoryTest(unittest.TestCase):
    def test_what_was_sent_and_what_is_remembered_is_what_was_given(self) -> None:
        for compression in map(_with_feedback, _ALL):
            with self.subTest(compression=compression):
                it, random = Compressing(compression), np.random.default_rng(1)
                given, sent = np.zeros(500), np.zeros(500)
                for _ in range(50):
                    values = random.standard_normal(500).astype(np.float32)
                    given += values
                    sent += _run(it, values)
                error = it.remembered("a")
                assert error is not None
                np.testing.assert_allclose(sent + error, given, atol=1e-3)
                self.assertGreater(np.abs(error).max(), 0.1)

    def test_the_learning_rate_scales_what_is_remembered(self) -> None:
        for compression in (TopK(0.1), OneBit()):
            it, random = Compressing(compression), np.random.default_rng(2)
            given, sent = np.zeros(100), np.zeros(100)
            rate = 0.0
            for step in range(60):
                rate = 0.0 if step < 3 else 0.1 if step < 30 else 0.01
                values = random.standard_normal(100).astype(np.float32)
                given += rate * values
                out = _run(it, values, rate=rate)
                self.assertTrue(np.isfinite(out).all())
                if step == 2:  # What is left of the steps before the first rate counts from now on.
                    given += 0.1 * np.asarray(it.remembered("a"))
                sent += rate * out
            error = np.asarray(it.remembered("a"))
            np.testing.assert_allclose(sent + rate * error, given, atol=1e-4)

    def test_a_rate_that_is_0_for_a_while(self) -> None:
        it = Compressing(TopK(1))
        _run(it, np.array([1.0, 5.0]), rate=0.5)
        _run(it, np.array([0.0, 5.0]), rate=0.0)
        np.testing.assert_array_equal(np.asarray(it.remembered("a")), [1, 0])
        np.testing.assert_array_equal(_run(it, np.array([0.0, 1.0]), rate=0.25), [2, 0])

    def test_random_places_are_those_of_the_other_ranks(self) -> None:
        ours, theirs = Compressing(RandomK(0.1, seed=3)), Compressing(RandomK(0.1, seed=3))
        others = Compressing(RandomK(0.1, seed=4, error_feedback=False))
        first, second = _places(ours), _places(ours)
        self.assertEqual(len(first), 20)
        self.assertNotEqual(first, second)
        self.assertEqual(_places(theirs, Stand(1, 1)), first)
        # This rank has no gradient in the second round.
        theirs.skip("a", 200, Stand(1, 1))
        self.assertEqual(_places(theirs, Stand(1, 1)), _places(ours))
        self.assertNotEqual(_places(others), first)

    def test_ranks_round_by_their_own_numbers(self) -> None:
        values = np.full(100, 0.3)
        values[0] = 1
        one, again, other = (Compressing(Dithering(2)) for _ in range(3))
        np.testing.assert_array_equal(_run(one, values), _run(again, values))
        self.assertFalse(np.array_equal(_run(one, values), _run(other, values, Stand(1, 1))))

    def test_another_view_begins_anew(self) -> None:
        """A joiner has nothing to remember, and draws as the others do."""
        it, joiner = Compressing(RandomK(0.1)), Compressing(RandomK(0.1))
        for _ in range(3):
            _places(it)
        self.assertEqual(_places(it, Stand(0, 2)), _places(joiner, Stand(2, 2)))
        self.assertEqual(np.asarray(it.remembered("a")).max(), 1)

    def test_a_round_without_a_gradient_keeps_what_is_remembered(self) -> None:
        it = Compressing(TopK(1))
        _run(it, np.array([1.0, 5.0]))
        it.skip("a", 2, _HERE)
        np.testing.assert_array_equal(np.asarray(it.remembered("a")), [1, 0])

    def test_momentum_is_nesterovs(self) -> None:
        it = Compressing(TopK(2), mu=0.5)
        np.testing.assert_array_equal(_run(it, np.array([4.0, 0.0])), [6, 0])
        np.testing.assert_array_equal(_run(it, np.array([4.0, 2.0])), [7, 3])

    def test_partitions_are_compressed_alone(self) -> None:
        it = Compressing(TopK(1), partition=2)
        np.testing.assert_array_equal(_run(it, np.array([1, 2, 9, 8, 3])), [0, 2, 9, 0, 3])


class OptimizerTest(unittest.TestCase):
    def setUp(self) -> None:
        talweg.init()
        self.addCleanup(talweg.shutdown)

    def _step(self, model: nn.Linear, optimizer: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Makes a step of rate 1 in which the weight has that gradient; returns the update."""
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        (model.weight * gradient).sum().backward()
        optimizer.step()
        return before - model.weight.detach()

    def _made(self, compression: Compression, **more: Any) -> tuple[nn.Linear, Any]:
        model = nn.Linear(3, 2, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return model, tw.DistributedOptimizer(
            optimizer, model.named_parameters(), compression=compression, **more
        )

    def test_an_optimizer_compresses(self) -> None:
        model, optimizer = self._made(TopK(1, bytes_min=0))
        gradient = torch.tensor([[1.0, 0, 0], [0, 3, 2]])
        moved = self._step(model, optimizer, gradient)
        self.assertEqual(moved.tolist(), [[0, 0, 0], [0, 3, 0]])
        moved = self._step(model, optimizer, gradient)
        self.assertEqual(moved.tolist(), [[0, 0, 0], [0, 0, 4]])

    def test_a_gradient_that_is_kept_and_not_used_changes_no_memory(self) -> None:
        gradient = torch.tensor([[1.0, -5, 0], [0, 3, 2]])
        moved = []
        for unused in (0, 2):
            model, optimizer = self._made(
                OneBit(bytes_min=0, error_feedback=True), name=f"kept.{unused}"
            )
            (model.weight * gradient).sum().backward()
            assert model.weight.grad is not None
            model.weight.grad.mul_(0.5)
            optimizer.step()
            for _ in range(unused):
                optimizer.step()  # The last average is there, and is not new.
            moved.append([self._step(model, optimizer, gradient) for _ in range(2)])
        for one, other in zip(*moved):
            torch.testing.assert_close(one, other)

    def test_small_gradients_are_not_compressed(self) -> None:
        model, optimizer = self._made(TopK(1))
        moved = self._step(model, optimizer, torch.ones(2, 3))
        self.assertEqual(moved.tolist(), [[1, 1, 1], [1, 1, 1]])

    def test_gradients_whose_elements_lie_otherwise(self) -> None:
        model, optimizer = self._made(TopK(1, bytes_min=0))
        model.weight.grad = torch.tensor([[1.0, 2], [5, 3], [0, 0]]).t()
        optimizer.step()
        self.assertEqual((-model.weight.detach()).tolist(), [[0, 5, 0], [0, 0, 0]])
        optimizer.zero_grad()
        model.weight.grad = torch.ones(1).expand(2, 3)
        optimizer.step()
        self.assertEqual((-model.weight.detach()).tolist(), [[0, 5, 0], [0, 4, 0]])

    def test_other_ways_of_an_optimizer(self) -> None:
        gradient = torch.tensor([[1.0, 0, 0], [0, 3, 2]])
        for passes, how in ((1, {"patience": 1.0}), (2, {"backward_passes_per_step": 2})):
            with self.subTest(how=how):
                name = f"optimizer.{passes}"
                model, optimizer = self._made(TopK(1, bytes_min=0), name=name, **how)
                for _ in range(passes):
                    (model.weight * gradient).sum().backward()
                optimizer.step()
                self.assertEqual((-model.weight.detach()).max().item(), 3 * passes)
                self.assertEqual((-model.weight.detach()).count_nonzero().item(), 1)

    def test_a_nan_reaches_the_step_and_is_not_remembered(self) -> None:
        model, optimizer = self._made(OneBit(bytes_min=0))
        gradient = torch.full((2, 3), 2.0)
        gradient[0, 0] = torch.nan
        self.assertTrue(self._step(model, optimizer, gradient).isnan().any())
        nn.init.zeros_(model.weight)
        moved = self._step(model, optimizer, torch.full((2, 3), 2.0))
        self.assertTrue(moved.isfinite().all())

    def test_optimizers_of_other_systems(self) -> None:
        hvd.init()
        gradient = torch.tensor([[1.0, 0, 0], [0, 3, 2]])
        for make in (bps.DistributedOptimizer, hvd.DistributedOptimizer):
            model = nn.Linear(3, 2, bias=False)
            nn.init.zeros_(model.weight)
            inner = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer = make(inner, model.named_parameters(), compression=TopK(1, bytes_min=0))
            self.assertEqual(self._step(model, optimizer, gradient).tolist(), [[0] * 3, [0, 3, 0]])
            self.assertEqual(self._step(model, optimizer, gradient).tolist(), [[0] * 3, [0, 0, 4]])

    def test_sums_are_not_compressed(self) -> None:
        hvd.init()
        model = nn.Linear(3, 2)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        with self.assertRaises(InvalidArgument) as raised:
            hvd.DistributedOptimizer(inner, compression=TopK(1), op=hvd.Sum)
        self.assertIn("averages of all ranks", str(raised.exception))
        with self.assertRaises(InvalidArgument) as raised:
            bps.push_pull(torch.ones(2), compression=TopK(1))
        self.assertIn("Compression.fp16", str(raised.exception))

    def test_what_is_no_compressor_is_refused(self) -> None:
        for wrong in ("topk", TopK):
            with self.assertRaises(InvalidArgument) as raised:
                self._made(wrong)  # type: ignore[arg-type]
            self.assertIn("talweg.compression", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
