# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients whose averages an optimizer takes one by one."""

from __future__ import annotations

import unittest

from model_framework import Framework
from talweg._exchange.states import State
from talweg.errors import Busy, InvalidArgument


class OverlapTest(unittest.TestCase):
    """Optimizers that take the averages one by one, when the next forward pass needs them."""

    def test_averages_are_taken_one_by_one(self) -> None:
        it = Framework("abc")
        it.others = {"x.gradient.c": 3.0}
        it.others_marks = {2: 1}
        self.assertEqual(it.exchange.take([0]), [])
        it.backward(0)
        it.exchange.on_step()
        self.assertIs(it.exchange.state, State.BEGUN)
        it.zero_grad()
        it.log.clear()
        self.assertEqual(it.exchange.take([0]), [(0, 0.5)])
        # In the first exchange it is known first that the others' parameters have these names.
        self.assertEqual(it.log, ["take x.used", "take x.gradient.a"])
        self.assertEqual(it.exchange.take([0, 1, 2]), [(2, 1.5)])
        self.assertEqual(it.open, {})
        self.assertIs(it.exchange.state, State.COLLECTING)

    def test_a_pass_that_overtakes(self) -> None:
        it = Framework("ab", passes=2)
        it.backward(0, 1)
        it.backward(0, 1)
        it.exchange.on_step()
        it.zero_grad()
        it.exchange.take([0])
        # The next forward pass leaves out the second module.
        self.assertFalse(it.backward(0))
        self.assertIs(it.exchange.state, State.BEGUN)
        it.accumulate(0)
        self.assertIs(it.exchange.state, State.NEXT_PUSHING)
        self.assertFalse(it.exchange.has_left_open)
        it.log.clear()
        self.assertTrue(it.exchange.on_pass_end())
        self.assertIs(it.exchange.state, State.NEXT_PARTLY_PUSHED)
        self.assertTrue(it.exchange.has_left_open)
        self.assertEqual(it.log, [])  # Its rounds are still the earlier step's.
        it.exchange.take([1])
        self.assertIs(it.exchange.state, State.PARTLY_PUSHED)
        it.exchange.begin()
        self.assertIs(it.exchange.state, State.BEGUN)
        it.exchange.discard()
        self.assertEqual(set(it.rounds.values()), {2})

    def test_synchronize_after_a_pass_that_has_overtaken(self) -> None:
        it = Framework("ab")
        it.backward(0, 1)
        it.exchange.on_step()
        it.zero_grad()
        it.exchange.take([0])
        it.backward(0)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)
        self.assertEqual((it.open, set(it.rounds.values())), ({}, {2}))

    def test_a_second_pass_before_the_step_is_refused(self) -> None:
        it = Framework("ab")
        it.backward(0)
        for _ in range(2):
            with self.assertRaisesRegex(
                InvalidArgument, "to 'b' while the averages of the pass be"
            ):
                it.accumulate(1)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)
        # Also after steps whose averages came with the next forward pass.
        it.backward(0)
        it.exchange.on_step()
        it.zero_grad()
        it.exchange.take([0])
        it.backward(0)
        it.exchange.take([1])
        it.exchange.begin()
        with self.assertRaisesRegex(InvalidArgument, "under way: synchronize between two passes"):
            it.accumulate(0)

    def test_a_second_pass_over_rounds_of_the_step_before_is_busy(self) -> None:
        it = Framework("ab")
        it.backward(0)
        it.exchange.on_step()
        with self.assertRaisesRegex(Busy, "x.gradient.a"):
            it.accumulate(0)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)

    def test_what_nobody_wants_is_discarded(self) -> None:
        it = Framework("ab")
        it.exchange.discard()
        it.backward(0)
        it.exchange.discard()
        self.assertEqual((it.open, it.values()), ({}, [1.0, None]))
        self.assertIs(it.exchange.state, State.COLLECTING)


if __name__ == "__main__":
    unittest.main()
