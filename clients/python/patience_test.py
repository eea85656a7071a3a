# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients whose rounds go on without late ranks, and what patience may be."""

from __future__ import annotations

import unittest
from typing import Any, cast

import numpy as np
from model_framework import Framework, said
from talweg._client.declared import Tensors
from talweg._client.local import LocalConnection
from talweg._declaration import Declaration, DType, Op, milliseconds_of
from talweg.errors import InvalidArgument, Mismatch, Unsupported


class PatienceTest(unittest.TestCase):
    def test_marks_wait_for_late_ranks_in_the_first_step_alone(self) -> None:
        it = Framework("ab", leaves_out=True)
        it.others = {"x.gradient.a": 3.0, "x.gradient.b": 5.0}
        it.others_marks = {0: 1}
        for _ in range(3):
            it.backward(0)
            it.exchange.synchronize()
            it.exchange.on_step()
            it.zero_grad()
        self.assertEqual(it.rounds["x.used"], 1)
        self.assertEqual(it.rounds["x.gradient.b"], 3)

    def test_every_parameter_counts(self) -> None:
        it = Framework("ab", leaves_out=True)
        it.others = {"x.gradient.a": 3.0}
        it.backward(0)
        it.exchange.synchronize()
        self.assertEqual(it.values(), [2.0, None])  # As the marks say.
        it.exchange.on_step()
        it.zero_grad()
        it.backward(0)
        it.exchange.synchronize()
        self.assertEqual(it.values(), [2.0, 0.0])

    def test_a_parameter_that_is_frozen_later_does_not_count(self) -> None:
        it = Framework("ab", leaves_out=True)
        for _ in range(2):
            it.backward(0, 1)
            it.exchange.synchronize()
            it.exchange.on_step()
            it.zero_grad()
        it.frozen = {1}
        it.backward(0)
        it.exchange.synchronize()
        self.assertEqual(it.values(), [0.5, None])
        self.assertEqual(it.rounds["x.gradient.b"], 3)
        it.exchange.on_step()
        it.zero_grad()
        it.frozen = set()
        it.backward(0)
        it.exchange.synchronize()
        self.assertEqual(it.values(), [0.5, 0.0])

    def test_parameters_that_are_added_are_compared(self) -> None:
        it = Framework("a", leaves_out=True)
        it.backward(0)
        it.exchange.synchronize()
        it.exchange.on_step()
        it.add("b")
        it.zero_grad()
        it.backward(0, 1)
        it.exchange.synchronize()
        self.assertEqual((it.rounds["x.used"], it.rounds["x.used.1"]), (1, 1))

    def test_a_joiner_makes_no_marks(self) -> None:
        """The others have made theirs, and would not take part in others."""
        it = Framework("a", leaves_out=True)
        it.comes_late = True
        it.backward(0)
        it.exchange.synchronize()
        self.assertEqual((it.rounds["x.used"], it.rounds["x.gradient.a"]), (0, 1))

    def test_nobody_joins(self) -> None:
        it = Framework("a", leaves_out=True)
        for call in (it.exchange.require_join, lambda: it.exchange.join(0)):
            with self.assertRaisesRegex(InvalidArgument, "leave out patience="):
                call()
        Framework("a").exchange.require_join()

    def test_another_job_exchanges_marks_again(self) -> None:
        """A process that is new in that job does so as well."""
        it = Framework("ab", leaves_out=True)
        for marks in (1, 2):
            for _ in range(2):
                it.backward(0, 1)
                it.exchange.synchronize()
                it.exchange.on_step()
                it.zero_grad()
            self.assertEqual(it.rounds["x.used"], marks)
            it.exchange.begin_anew()

    def test_a_parameter_that_is_not_used_has_not_changed(self) -> None:
        """It keeps an old gradient, as after zero_grad(set_to_none=False)."""
        it = Framework("ab", leaves_out=True)
        it.backward(0, 1)
        it.exchange.synchronize()
        it.exchange.on_step()
        for gradient in it.gradients.values():
            assert gradient is not None
            gradient.value = 0.0
        it.exchange.on_zero_grad()
        it.backward(0)
        it.exchange.begin()
        it.exchange.check_unchanged()
        it.change(0)
        with self.assertRaisesRegex(InvalidArgument, "gradient of 'a' was changed"):
            it.exchange.check_unchanged()
        it.exchange.synchronize()
        self.assertEqual(it.values()[1], 0.0)  # It counts.

    def _thawing(self) -> Framework:
        """Has made a step with 'b' frozen."""
        it = Framework("ab", leaves_out=True, frozen=[1])
        self._step(it, 0)
        it.log.clear()
        return it

    def _step(self, it: Framework, *indices: int) -> None:
        it.backward(*indices)
        it.exchange.synchronize()
        it.exchange.on_step()
        it.zero_grad()

    def test_ranks_compare_when_a_parameter_thaws(self) -> None:
        it = self._thawing()
        self._step(it, 0)  # Nobody has thawed it.
        self.assertEqual((it.rounds["x.used"], it.rounds["x.thawed"]), (1, 1))
        it.log.clear()
        it.frozen, it.others_thaws = set(), [[0.0, 1.0]]
        self._step(it, 0, 1)
        self.assertIn("push x.thawed=[0.0, 1.0]", it.log)
        self.assertLess(it.log.index("take x.used"), it.log.index("take x.gradient.a"))
        for _ in range(2):  # Nothing is frozen any more.
            self._step(it, 0, 1)
        self.assertEqual((it.rounds["x.used"], it.rounds["x.thawed"]), (2, 2))
        self.assertEqual(it.rounds["x.gradient.b"], 3)

    def test_a_parameter_that_thaws_here_alone(self) -> None:
        """Also where this rank was left out of the round that tells of it."""
        for rounds, self_is_late in ((1, False), (2, True)):
            with self.subTest(is_late=self_is_late):
                it = self._thawing()
                it.frozen, it.is_left_out = set(), self_is_late
                it.others_names = [f"{text}{', frozen' * i}" for i, text in enumerate(said("ab"))]
                it.backward(0, 1)
                with self.assertRaisesRegex(
                    Mismatch, "parameter 1 is 'b' at rank 0, but 'b', frozen at rank 1: "
                ):
                    it.exchange.synchronize()
                self.assertEqual(it.rounds["x.thawed"], rounds)
                self.assertNotIn("take x.gradient.a", it.log)

    def test_a_parameter_that_thaws_elsewhere_alone(self) -> None:
        it = self._thawing()
        it.others_thaws, it.others_names = [[0.0, 1.0]], said("ab")
        it.backward(0)
        with self.assertRaisesRegex(
            Mismatch, "parameter 1 is 'b', frozen at rank 0, but 'b' at rank 1: .* freeze and thaw"
        ):
            it.exchange.synchronize()

    def test_an_interrupted_wait_for_thaws_goes_on(self) -> None:
        it = self._thawing()
        it.frozen, it.is_left_out = set(), True
        it.interrupted = {"take x.thawed"}
        it.backward(0, 1)
        with self.assertRaises(KeyboardInterrupt):
            it.exchange.synchronize()
        it.exchange.synchronize()
        self.assertEqual(it.rounds["x.used"], 2)
        self.assertFalse(it.open)


class DeclarationTest(unittest.TestCase):
    def test_what_patience_may_be(self) -> None:
        self.assertEqual(
            [milliseconds_of(each) for each in (None, 0.001, 0.0204, 65)], [0, 1, 20, 65000]
        )
        self.assertEqual(milliseconds_of(cast(Any, np.float32(0.02))), 20)
        for patience in cast(
            Any, (0, -1.0, 0.0009, 66, float("nan"), "0.02", [0.02], True, False, 1j)
        ):
            with self.assertRaisesRegex(InvalidArgument, "from 0.001 to 65"):
                milliseconds_of(patience)

    def test_what_cannot_leave_late_ranks_out(self) -> None:
        """A job of one rank refuses it as well."""
        connection = LocalConnection()
        self.addCleanup(connection.close)
        for dtype, op in ((DType.I32, Op.SUM), (DType.F32, Op.MAX), (DType.F16, Op.AVERAGE)):
            with self.assertRaisesRegex(InvalidArgument, "'x': .* cannot leave late ranks out"):
                connection.declare_collective("x", dtype, op, (1, 1), 0, (), 3, patience_ms=20)
        connection.declare_collective("x", DType.F64, Op.SUM, (1, 1), 0, (), 3, patience_ms=20)

    def test_calls_do_not_say_it(self) -> None:
        patient = Declaration(DType.F32, 3, Op.SUM, 0, patience_ms=20)
        self.assertTrue(patient.is_for(Declaration(DType.F32, 3, Op.SUM, 0)))
        self.assertFalse(patient.is_for(Declaration(DType.F32, 4, Op.SUM, 0)))
        self.assertFalse(patient.is_plain)
        self.assertIn("waits 20 ms for late ranks", str(patient))


class Connection:
    """Agrees to every declaration, and keeps the patience of each."""

    def __init__(self) -> None:
        self.declared: list[tuple[str, int]] = []

    def declare_all(self, declarations: Any, *_: Any) -> list[int]:
        self.declared += [(each[0], 0) for each in declarations]
        return [len(self.declared) - 1]

    def declare_collective(self, name: str, *_: Any, patience_ms: int, **__: Any) -> int:
        self.declared.append((name, patience_ms))
        return len(self.declared) - 1

    def sums_in_place(self, _: int) -> bool:
        return False


class TensorsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.connection = Connection()
        self.tensors = Tensors(cast(Any, self.connection))

    def declare(self, patience_ms: int = 0, ranks: tuple[int, ...] = (), count: int = 3) -> None:
        declaration = Declaration(DType.F32, count, Op.SUM, 0, ranks, patience_ms=patience_ms)
        self.tensors.declare("w", declaration)

    def test_calls_use_the_tensor_as_it_was_declared(self) -> None:
        self.declare(20)
        self.declare()
        self.assertEqual(self.connection.declared, [("w", 20)])

    def test_another_patience_is_refused(self) -> None:
        self.declare(20)
        self.tensors.require_patience("w", 20)
        self.tensors.require_patience("new", 7)
        with self.assertRaisesRegex(InvalidArgument, "20 ms .* now declared with no patience"):
            self.tensors.require_patience("w", 0)
        with self.assertRaisesRegex(InvalidArgument, "a patience of 30 ms: give the second use"):
            self.tensors.require_patience("w", 30)

    def test_a_name_with_patience_has_one_use(self) -> None:
        """Late ranks would hear in another round than others that the name is used otherwise."""
        self.declare(20)
        other = Declaration(DType.F32, 4, Op.SUM, 0)
        self.assertIsNone(self.tensors.settled_otherwise("w", other))
        with self.assertRaisesRegex(InvalidArgument, "waits 20 ms .* a name of its own"):
            self.declare(count=4)
        self.tensors.declare("x", other)
        self.assertIsNotNone(
            self.tensors.settled_otherwise("x", Declaration(DType.F32, 3, Op.SUM, 0))
        )

    def test_patience_stays_when_ranks_get_other_numbers(self) -> None:
        self.declare(20, ranks=(0, 2))
        self.tensors.forget_numbers()
        self.declare(ranks=(0, 1))
        self.assertEqual(self.connection.declared, [("w", 20), ("w", 20)])
        known = self.tensors.known("w")
        assert known is not None
        self.assertEqual(known.declaration.patience_ms, 20)

    def test_gpus_have_no_patience(self) -> None:
        self.declare(20)
        with self.assertRaisesRegex(Unsupported, "in host memory, and is now on a GPU"):
            self.tensors.declare_on_gpu("w", Declaration(DType.F32, 3, Op.SUM, 0))


if __name__ == "__main__":
    unittest.main()
