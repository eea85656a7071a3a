# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients where ranks have different numbers of batches: join()."""

from __future__ import annotations

import unittest
from unittest import mock

from model_framework import Framework, Ticket
from talweg._exchange.states import State


class JoinTest(unittest.TestCase):
    def test_ranks_that_have_more_batches_are_waited_for(self) -> None:
        it = Framework("a", passes=2)
        it.exchange.on_step()
        first_step = it.exchange.steps
        it.exchange.on_step()
        it.backward(0)  # Which leads to no step. What it leaves counts no more.
        others_left = iter([1, 1, 0])
        finish = it.finish

        def finish_shadow(ticket: Ticket) -> float:
            if ticket.marks is not None:
                it.others_marks = {-1: next(others_left)}
            return finish(ticket)

        it.others_steps = 3
        with mock.patch.object(it, "finish", finish_shadow):
            self.assertEqual(it.exchange.join(first_step), 1)
        self.assertEqual(it.rounds["x.gradient.a"], 3)
        pushed = [line for line in it.log if line.startswith("push")]
        self.assertEqual(pushed, ["push x.gradient.a=0 at 0", "push x.used=[0, 0]"] * 3)
        self.assertEqual(it.log[-1], "gather x.join=1")
        self.assertIs(it.exchange.state, State.COLLECTING)

    def test_losses_are_averaged_with_ranks_that_have_no_batch(self) -> None:
        """Ranks that evaluate a closure say so, and those in join() give no loss."""
        it = Framework("a")
        for evaluates in (True, False):
            it.exchange.evaluates = evaluates
            it.backward(0)
            it.exchange.synchronize()
            self.assertEqual(it.logged("push")[-1], f"x.used=[1, {1 + evaluates}]")
            self.assertIs(it.exchange.has_said_loss, evaluates)
            it.exchange.on_step()
        others_left, finish = iter([2, 1, 2, 0]), it.finish

        def finish_shadow(ticket: Ticket) -> float:
            if ticket.marks is not None:
                it.others_marks = {-1: next(others_left)}
            return finish(ticket)

        it.exchange.evaluates = True
        with mock.patch.object(it, "finish", finish_shadow):
            it.exchange.join(0)
        self.assertEqual(it.log.count("give no loss"), 2)
        self.assertFalse(it.exchange.has_said_loss)

    def test_the_rank_with_most_steps_is_the_root(self) -> None:
        for steps, root in ((0, 1), (2, 0), (1, 0)):
            it = Framework("a")
            it.others_steps = 1
            for _ in range(steps):
                it.exchange.on_step()
            self.assertEqual(it.exchange.join(0), root)

    def test_it_serves_until_no_rank_needs_it(self) -> None:
        it = Framework("a")
        others_left, finish = iter([1, 1, 0]), it.finish

        def finish_shadow(ticket: Ticket) -> float:
            if ticket.marks is not None:
                it.others_marks = {-1: next(others_left)}
            return finish(ticket)

        it.finish = finish_shadow  # type: ignore[method-assign]
        it.exchange.join(0)
        self.assertEqual(it.rounds[f"{it.exchange.name}.gradient.a"], 3)

    def test_what_is_under_way_is_finished_first(self) -> None:
        it = Framework("a")
        it.backward(0)
        it.exchange.join(0)
        # Its own gradient is in the first exchange: there is another one, without.
        self.assertEqual(it.rounds["x.gradient.a"], 2)
        self.assertEqual(it.open, {})


if __name__ == "__main__":
    unittest.main()
