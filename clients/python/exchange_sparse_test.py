# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients that may be sparse, without a framework and without a job."""

from __future__ import annotations

import unittest

from model_framework import Framework, Gradient
from talweg._exchange.adapter import DENSE
from talweg._exchange.states import State
from talweg.errors import InvalidArgument, Mismatch


def framework(names: str = "ab") -> Framework:
    """One whose parameters may all have sparse gradients."""
    return Framework(names, may_have_sparse=range(len(names)))


class FirstStepTest(unittest.TestCase):
    def test_a_dense_gradient_leaves_at_the_end_of_the_pass_and_agrees_to_its_form(self) -> None:
        it = framework()
        it.accumulate(1)
        it.accumulate(0)
        self.assertEqual(it.log, [])  # It would declare memory for all parameters.
        it.exchange.on_pass_end()
        self.assertEqual(it.log[0], "declare x.gradient.a x.gradient.b")
        self.assertEqual(
            it.logged("push"),
            [
                "x.gradient.a=1 at 0",
                "x.gradient.b=1 at -1",
                f"x.used=[1, 1, 1] [{DENSE}, {DENSE}]",
            ],
        )
        it.exchange.synchronize()
        it.exchange.on_step()
        it.log.clear()
        it.accumulate(1)
        self.assertEqual(it.logged("push"), ["x.gradient.b=1.5 at -1"])

    def test_a_sparse_gradient_leaves_when_the_marks_are_there(self) -> None:
        it = framework()
        it.sparse = {0: 1}
        it.backward(1, 0)
        self.assertEqual(
            it.logged("push"), ["x.gradient.b=1 at -1", f"x.used=[1, 1, 1] [1, {DENSE}]"]
        )
        self.assertIs(it.exchange.state, State.BEGUN)
        it.exchange.synchronize()
        self.assertEqual(it.log[0], "take x.used")
        self.assertEqual(it.logged("push"), ["x.gradient.a=1 at 0 sparse 1"])
        self.assertEqual(it.open, {})
        # From now on it leaves as soon as it is there, also where this rank has none.
        it.exchange.on_step()
        it.zero_grad()
        it.accumulate(0)
        self.assertEqual(it.logged("push"), ["x.gradient.a=1 at 0 sparse 1"])
        it.exchange.on_pass_end()
        it.exchange.synchronize()
        it.exchange.on_step()
        it.zero_grad()
        it.log.clear()
        it.backward(1)
        self.assertEqual(
            it.logged("push"),
            [
                "x.gradient.b=1 at -1",
                "x.gradient.a=0 at 0 sparse 1",
                f"x.used=[0, 1, 1] [1, {DENSE}]",
            ],
        )

    def test_a_second_pass_before_the_step_gives_what_the_first_has_left(self) -> None:
        it = framework()
        it.sparse = {0: 1}
        it.backward(1, 0)
        it.exchange.synchronize()
        it.log.clear()
        it.backward(1)
        self.assertIn("x.gradient.a=0.5 at 0 sparse 1", it.logged("push"))

    def test_a_rank_without_a_gradient_learns_the_form_from_the_others(self) -> None:
        for form, text in ((1, " sparse 1"), (DENSE, "")):
            with self.subTest(form=form):
                it = framework()
                it.others_marks, it.others_forms = {0: 1}, {0: form}
                it.others = {"x.gradient.a": 3.0}
                it.backward(1)
                self.assertNotIn("x.gradient.a", it.open)
                it.exchange.synchronize()
                self.assertIn(f"push x.gradient.a=0 at 0{text}", it.log)
                self.assertEqual(it.values(), [1.5, 0.5])

    def test_a_parameter_that_nobody_uses_has_no_round_until_somebody_does(self) -> None:
        it = framework()
        for _ in range(2):
            it.backward(1)
            it.exchange.synchronize()
            it.exchange.on_step()
        self.assertEqual(it.rounds["x.gradient.a"], 0)
        self.assertIsNone(it.gradients[0])
        it.others_marks, it.others_forms = {0: 1}, {0: 1}
        it.backward(1)
        it.exchange.synchronize()
        self.assertEqual(it.rounds["x.gradient.a"], 1)

    def test_where_ranks_differ_the_form_is_dense(self) -> None:
        it = framework()
        it.sparse, it.others_forms = {0: 1}, {0: DENSE}
        it.backward(0, 1)
        it.exchange.synchronize()
        self.assertIn("push x.gradient.a=1 at 0", it.log)
        it.exchange.on_step()
        it.log.clear()
        it.accumulate(0)
        self.assertIn("push x.gradient.a", it.log[-1])
        self.assertNotIn("sparse", it.log[-1])

    def test_a_dense_gradient_where_all_others_are_sparse_is_refused(self) -> None:
        it = framework("a")
        it.sparse = {0: 1}
        it.backward(0)
        it.exchange.synchronize()
        it.exchange.on_step()
        it.others_forms = {0: DENSE}  # A rank that has come since.
        it.backward(0)
        with self.assertRaisesRegex(InvalidArgument, "another rank has a dense gradient of 'a'"):
            it.exchange.synchronize()

    def test_other_names_are_told_before_anything_is_held(self) -> None:
        it = framework()
        it.sparse = {0: 1, 1: 1}
        it.others_names = ["'a'", "'z'"]
        it.backward(0, 1)
        with self.assertRaisesRegex(Mismatch, "parameter 1 is 'b'"):
            it.exchange.synchronize()
        self.assertEqual(it.rounds["x.gradient.a"], 0)

    def test_averages_that_are_taken_one_by_one_wait_for_the_marks_first(self) -> None:
        it = framework("abc")
        it.others_marks, it.others_forms = {1: 1}, {1: 1}
        it.backward(0, 2)
        taken = it.exchange.take([2])
        self.assertEqual([index for index, _ in taken], [2])
        # The rank pushed what the others wait for, before it waited itself.
        self.assertLess(
            it.log.index("push x.gradient.b=0 at -1 sparse 1"), it.log.index("take x.gradient.c")
        )
        self.assertEqual([index for index, _ in it.exchange.take([0, 1, 2])], [0, 1])
        self.assertIs(it.exchange.state, State.COLLECTING)

    def test_an_interrupt_while_held_gradients_leave_loses_none(self) -> None:
        it = framework()
        it.sparse = {0: 1, 1: 1}
        it.backward(0, 1)
        it.interrupted = {"push x.gradient.a"}
        with self.assertRaises(KeyboardInterrupt):
            it.exchange.synchronize()
        it.exchange.synchronize()
        self.assertEqual((it.rounds["x.gradient.a"], it.rounds["x.gradient.b"]), (1, 1))
        self.assertEqual(it.open, {})

    def test_held_gradients_leave_before_a_program_may_change_them(self) -> None:
        it = framework("a")
        it.sparse = {0: 1}
        it.backward(0)
        it.exchange.check_unchanged()
        self.assertIn("x.gradient.a", it.open)
        it.gradients[0] = Gradient(7.0)
        with self.assertRaisesRegex(InvalidArgument, "changed while its average was under way"):
            it.exchange.check_unchanged()

    def test_a_rank_out_of_batches_takes_part_without_rows(self) -> None:
        it = framework("a")
        it.others_marks, it.others_forms = {0: 1, -1: 1}, {0: 1}
        self.assertTrue(it.exchange.shadow())
        self.assertIn("push x.gradient.a=0 at 0 sparse 1", it.log)
        it.others_marks = {}
        self.assertFalse(it.exchange.shadow())

    def test_a_new_job_agrees_anew(self) -> None:
        it = framework("a")
        it.sparse = {0: 1}
        it.backward(0)
        it.exchange.synchronize()
        it.exchange.begin_anew()
        it.open.clear()
        it.log.clear()
        it.accumulate(0)
        self.assertEqual(it.log, [])


if __name__ == "__main__":
    unittest.main()
