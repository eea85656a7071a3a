# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients whose rounds go on without late ranks, and what patience may be."""

from __future__ import annotations

import unittest
from typing import Any, cast

import numpy as np
from model_framework import Framework
from talweg._client.local import LocalConnection
from talweg._declaration import Declaration, DType, Op, milliseconds_of
from talweg.errors import InvalidArgument


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
        it.exchange.on_zero_grad()
        it.backward(0)
        it.exchange.begin()
        it.exchange.check_unchanged()
        it.change(0)
        with self.assertRaisesRegex(InvalidArgument, "gradient of 'a' was changed"):
            it.exchange.check_unchanged()
        it.exchange.synchronize()
        self.assertEqual(it.values()[1], 0.0)  # It counts.


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


if __name__ == "__main__":
    unittest.main()
