# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients, without a framework and without a job: one rank's side of it."""

from __future__ import annotations

import unittest
from unittest import mock

from model_framework import Framework, Gradient, said
from talweg._exchange.adapter import Refusal
from talweg._exchange.states import State
from talweg.errors import Busy, InvalidArgument, Mismatch


class StepTest(unittest.TestCase):
    def _is(self, framework: Framework, state: State) -> None:
        self.assertIs(framework.exchange.state, state)

    def test_each_gradient_leaves_when_it_is_ready(self) -> None:
        it = Framework()
        it.accumulate(2)
        self.assertEqual(it.logged("push"), ["x.gradient.c=1 at -2"])
        it.accumulate(0)
        self.assertEqual(it.logged("push"), ["x.gradient.a=1 at 0"])
        self._is(it, State.PUSHING)
        self.assertEqual(it.watched_passes, 1)
        # The end of the pass brings zeros for the rest, and who had a gradient.
        self.assertTrue(it.exchange.on_pass_end())
        self.assertEqual(it.logged("push"), ["x.gradient.b=0 at -1", "x.used=[1, 0, 1, 1]"])
        self._is(it, State.BEGUN)
        it.exchange.begin()
        self.assertEqual(it.log, [])

    def test_a_gradient_that_is_not_final_leaves_with_the_end_of_the_pass(self) -> None:
        it = Framework("ab")
        it.gradients = {0: Gradient(1.0), 1: Gradient(1.0)}
        it.exchange.on_gradient(0, is_final=False)
        it.change(0)
        self._is(it, State.PASS)
        it.exchange.on_gradient(1)
        self.assertEqual(it.logged("push"), ["x.gradient.b=1 at -1"])
        it.exchange.on_pass_end()
        self.assertEqual(it.logged("push"), ["x.gradient.a=1 at 0", "x.used=[1, 1, 1]"])
        it.exchange.check_unchanged()

    def test_the_averages_take_the_gradients_places(self) -> None:
        it = Framework()
        it.others = {"x.gradient.a": 3.0, "x.gradient.b": 5.0}
        it.others_marks = {0: 1, 1: 1, -1: 1}
        it.backward(0)
        self.assertFalse(it.exchange.averaged)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)
        # Nobody had a gradient of the last one: it keeps what it had.
        self.assertEqual(it.values(), [2.0, 2.5, None])
        self.assertEqual(it.open, {})
        it.log.clear()
        it.exchange.synchronize()
        self.assertEqual(it.log, [])
        it.exchange.on_step()
        self._is(it, State.COLLECTING)
        self.assertEqual(it.exchange.steps, 1)

    def test_when_the_agent_is_lost_nothing_is_under_way_any_more(self) -> None:
        for lost_in in ("a pass", "an exchange", "a second pass"):
            with self.subTest(lost_in=lost_in):
                it = Framework("ab", passes=2)
                it.backward(0)
                if lost_in != "a second pass":
                    it.accumulate(0)
                if lost_in == "an exchange":
                    it.exchange.on_pass_end()
                it.exchange.begin_anew()
                it.open.clear()
                it.gradients = dict.fromkeys(it.gradients)
                self._is(it, State.COLLECTING)
                it.log.clear()
                # A step as the first one of any rank.
                self.assertFalse(it.backward(1))
                self.assertEqual(it.log, [])
                self.assertTrue(it.backward(1))
                self.assertEqual(
                    it.logged("push"),
                    ["x.gradient.b=2 at -1", "x.gradient.a=0 at 0", "x.used=[0, 1, 1]"],
                )
                it.exchange.synchronize()
                self.assertTrue(it.exchange.averaged)

    def test_only_the_last_pass_pushes(self) -> None:
        it = Framework("a", passes=3)
        for _ in range(2):
            self.assertFalse(it.backward(0))
            self._is(it, State.COLLECTING)
        it.accumulate(0)
        self._is(it, State.PUSHING)
        self.assertTrue(it.exchange.on_pass_end())
        self.assertEqual(it.logged("push"), ["x.gradient.a=3 at 0", "x.used=[1, 1]"])
        self.assertEqual(it.watched_passes, 3)
        it.exchange.synchronize()
        it.exchange.on_step()
        # And so in the next step; a step of fewer passes pushes what there is.
        it.zero_grad()
        self.assertFalse(it.backward(0))
        it.exchange.synchronize()
        self.assertEqual(it.logged("push"), ["x.gradient.a=1 at 0", "x.used=[1, 1]"])
        it.exchange.on_step()
        self.assertFalse(it.backward(0))

    def test_a_second_pass_before_the_step_adds_to_the_averages(self) -> None:
        """Also to those of parameters that it has not used here."""
        it = Framework("ab")
        it.others = {"x.gradient.a": 3.0, "x.gradient.b": 5.0}
        it.backward(0, 1)
        it.exchange.synchronize()
        it.others["x.gradient.b"] = 3.0 + 4.0  # The other rank uses it again.
        it.others_marks = {1: 1}
        it.log.clear()
        it.backward(0)
        self.assertEqual(
            it.logged("push"), ["x.gradient.a=3 at 0", "x.gradient.b=3 at -1", "x.used=[1, 0, 1]"]
        )
        it.exchange.synchronize()
        self.assertEqual(it.values(), [3.0, 5.0])
        self.assertEqual(it.dropped, [])

    def test_a_gradient_that_nobody_has_used_again_stays(self) -> None:
        it = Framework("ab")
        it.backward(0, 1)
        it.exchange.synchronize()
        it.others = {"x.gradient.b": 3.0}
        it.backward(0)
        it.exchange.synchronize()
        self.assertEqual((it.values()[1], it.dropped), (0.5, ["x.gradient.b"]))

    def test_a_step_counts_its_own_passes(self) -> None:
        it = Framework("a", passes=2)
        for _ in range(3):
            self.assertFalse(it.backward(0))
            self.assertTrue(it.backward(0))
            it.exchange.synchronize()
            it.exchange.on_step()

    def test_the_number_of_passes_may_change(self) -> None:
        it = Framework("a")
        it.exchange.set_passes(2)
        self.assertFalse(it.backward(0))
        it.exchange.set_passes(1)
        self.assertTrue(it.backward(0))
        for passes in (0, -1):
            with self.assertRaisesRegex(InvalidArgument, f"passes_per_step is {passes};"):
                it.exchange.set_passes(passes)

    def test_zero_grad_forgets_what_was_accumulated(self) -> None:
        it = Framework("ab", passes=2)
        it.backward(0)
        it.zero_grad()
        self.assertFalse(it.backward(1))
        self.assertTrue(it.backward(1))
        pushed = ["x.gradient.b=2 at -1", "x.gradient.a=0 at 0", "x.used=[0, 1, 1]"]
        self.assertEqual(it.logged("push"), pushed)
        it.exchange.synchronize()
        it.zero_grad()
        self._is(it, State.COLLECTING)

    def test_a_pass_that_has_failed(self) -> None:
        it = Framework("ab")
        it.accumulate(1)
        self.assertEqual((it.watched_passes, it.forgotten_passes), (1, 0))
        # Nobody tells of its end; the next one cannot push what is under way.
        with self.assertRaisesRegex(InvalidArgument, "gradient of 'b' has left and has come again"):
            it.accumulate(1)
        it.zero_grad()
        self._is(it, State.PARTLY_PUSHED)
        self.assertEqual((it.watched_passes, it.forgotten_passes), (1, 1))
        self.assertTrue(it.exchange.has_left_open)
        with self.assertRaisesRegex(InvalidArgument, "gradient of 'b' has left and has come again"):
            it.accumulate(1)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)
        self.assertEqual(it.rounds, {"x.gradient.b": 1, "x.gradient.a": 1, "x.used": 1})
        # A step, too, brings the rest of the rounds, when there was no synchronize() before.
        it.exchange.on_step()
        it.accumulate(1)
        it.exchange.begin()
        self._is(it, State.BEGUN)
        it.exchange.on_step()
        it.exchange.synchronize()
        self.assertEqual(set(it.rounds.values()), {2})

    def test_a_pass_that_is_refused_has_not_begun(self) -> None:
        it = Framework("a")
        it.backward(0)
        it.exchange.synchronize()
        refuse = mock.Mock(side_effect=lambda: self.assertFalse(it.exchange.averaged))
        with mock.patch.object(it, "watch_pass", refuse), self.assertRaises(AssertionError):
            it.accumulate(0)
        self._is(it, State.AVERAGED)

    def test_what_a_failed_pass_has_pushed_counts(self) -> None:
        it = Framework("ab")
        it.accumulate(1)
        it.zero_grad()
        it.exchange.synchronize()
        self.assertEqual(it.logged("push")[-1], "x.used=[0, 1, 1]")

    def test_a_failed_pass_before_the_last_has_pushed_nothing(self) -> None:
        it = Framework("ab", passes=2)
        it.accumulate(1)
        self._is(it, State.PASS)
        it.zero_grad()
        self._is(it, State.COLLECTING)
        self.assertFalse(it.exchange.has_left_open)

    def test_a_pass_that_goes_on_after_it_was_given_up(self) -> None:
        """As when something synchronizes within it."""
        it = Framework("ab")
        it.accumulate(1)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.on_pass_end())
        self._is(it, State.BEGUN)
        it.exchange.synchronize()
        self.assertEqual(it.open, {})
        self.assertTrue(it.exchange.averaged)

    def test_a_push_that_fails_is_made_again(self) -> None:
        it = Framework("abc")
        it.failures = {"push x.gradient.b": Busy("b"), "push x.used": Busy("used")}
        with self.assertRaisesRegex(Busy, "b"):
            it.exchange.begin()
        self._is(it, State.PARTLY_PUSHED)
        with self.assertRaisesRegex(Busy, "used"):
            it.exchange.synchronize()
        it.exchange.synchronize()
        self.assertEqual(set(it.rounds.values()), {1})
        self.assertEqual(len(it.rounds), 4)

    def test_a_wait_that_is_interrupted_is_gone_on_with(self) -> None:
        for interrupted in ("x.gradient.b", "x.used"):
            with self.subTest(interrupted):
                it = Framework("ab")
                it.others = {"x.gradient.a": 3.0, "x.gradient.b": 5.0}
                it.others_marks = {1: 1, -1: 1}
                it.backward(0)
                it.failures = {f"take {interrupted}": KeyboardInterrupt()}
                with self.assertRaises(KeyboardInterrupt):
                    it.exchange.synchronize()
                self._is(it, State.BEGUN)
                it.exchange.synchronize()
                self.assertEqual(it.values(), [2.0, 2.5])

    def test_an_optimizer_without_parameters(self) -> None:
        it = Framework("")
        it.exchange.synchronize()
        self.assertEqual(it.log, ["push x.used=[1]", "take x.used"])
        it.exchange.on_step()
        self.assertEqual(it.exchange.steps, 1)

    def test_gradients_that_a_closure_computes_again(self) -> None:
        it = Framework("a")
        for _ in range(2):
            it.exchange.on_evaluation()
            it.zero_grad()
            it.backward(0)
            it.exchange.synchronize()
        it.exchange.on_step()
        self.assertEqual((it.rounds["x.gradient.a"], it.exchange.steps), (2, 1))


class OrderTest(unittest.TestCase):
    def test_all_are_declared_before_the_first_is_pushed(self) -> None:
        it = Framework("ab")
        it.backward(1)
        self.assertEqual(it.log[0], "declare x.gradient.a x.gradient.b")
        it.exchange.synchronize()
        it.zero_grad()
        it.backward(1)
        self.assertEqual(len(it.logged("declare")), 1)

    def test_priorities_may_be_the_frameworks(self) -> None:
        it = Framework("ab")
        with mock.patch.object(it, "priority_of", lambda index: 7 + index):
            it.backward(1)
        self.assertEqual(it.logged("push")[:2], ["x.gradient.b=1 at 8", "x.gradient.a=0 at 7"])

    def _taken(self, late: set[str], in_order: bool) -> str:
        it = Framework("abcd")
        it.late = {f"x.gradient.{name}" for name in late}
        it.in_order = in_order
        it.backward(3, 2, 1, 0)
        it.log.clear()
        it.exchange.synchronize()
        taken = [name for name in it.logged("take") if name != "x.used"]
        return "".join(name[-1] for name in taken)

    def test_averages_are_taken_as_they_are_likely_to_come(self) -> None:
        self.assertEqual(self._taken(set(), in_order=True), "dcba")
        self.assertEqual(self._taken(set(), in_order=False), "dcba")
        self.assertEqual(self._taken({"c"}, in_order=False), "dabc")
        self.assertEqual(self._taken({"a", "b", "c", "d"}, in_order=False), "abcd")
        self.assertEqual(self._taken({"a", "b", "c", "d"}, in_order=True), "dcba")


class ParametersTest(unittest.TestCase):
    def test_one_that_is_frozen_takes_part_from_its_thaw_on(self) -> None:
        it = Framework("")
        it.frozen = {0}
        it.add("ab")
        self.assertEqual((it.watched, list(it.exchange.active)), ([1], [1]))
        it.backward(1)
        self.assertEqual(it.logged("push"), ["x.gradient.b=1 at -1", "x.used.1=[0, 1, 1]"])
        it.exchange.synchronize()
        it.exchange.on_step()
        it.frozen = {1}  # It goes on with zeros.
        it.exchange.activate()
        self.assertEqual(it.watched, [1, 0])
        it.zero_grad()
        it.log.clear()
        it.backward(0)
        pushed = ["x.gradient.a=1 at 0", "x.gradient.b=0 at -1", "x.used.1=[1, 0, 1]"]
        self.assertEqual(it.logged("push"), pushed)

    def test_one_that_is_thawed_before_a_step_alone(self) -> None:
        it = Framework("")
        it.frozen = {0}
        it.add("ab")
        it.frozen = set()
        it.exchange.begin()
        self.assertEqual(it.rounds["x.gradient.a"], 1)

    def test_one_that_is_thawed_at_another_rank_alone_is_named(self) -> None:
        it = Framework("")
        it.frozen = {0}
        it.add("ab")
        it.others_marks = {0: 1}
        it.backward(1)
        with self.assertRaisesRegex(InvalidArgument, "a gradient of 'a', which is frozen here"):
            it.exchange.synchronize()

    def test_those_that_are_added(self) -> None:
        it = Framework("a")
        self.assertEqual(it.add("b", nbytes=0), [None])
        self.assertEqual(it.add("c"), [1])
        self.assertEqual(it.exchange.name_of(1), "c")
        it.backward(1)
        self.assertEqual(
            it.logged("push"), ["x.gradient.c=1 at -1", "x.gradient.a=0 at 0", "x.used.2=[0, 1, 1]"]
        )
        # Between backward and step: the exchange that is under way knows nothing of it.
        it.frozen = {2}
        it.add("d")
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)

    def test_another_dtype_is_another_tensor(self) -> None:
        it = Framework("a")
        for dtype, name in (("f32", "x.gradient.a"), ("bf16", "x.gradient.a.bf16")) * 2:
            it.dtypes[0] = dtype
            it.zero_grad()
            it.backward(0)
            self.assertEqual(it.logged("push")[0], f"{name}=1 at 0")
            it.exchange.synchronize()


class NamesTest(unittest.TestCase):
    def test_the_first_that_differs_is_named_before_anybody_waits_for_it(self) -> None:
        it = Framework("abc")
        it.others_names = said("axc")
        it.backward(0, 1, 2)
        it.log.clear()
        text = "'x': parameter 1 is 'b' at rank 0, but 'x' at rank 1: build the same model"
        for _ in range(2):
            with self.assertRaisesRegex(Mismatch, text):
                it.exchange.synchronize()
        self.assertEqual(it.log, ["take x.used", "gather x.names"])

    def test_a_rank_that_does_not_say_its_names_is_not_waited_for(self) -> None:
        it = Framework("abc")
        it.others_names, it.others_say_names = said("cba"), False
        it.backward(0, 1, 2)
        with self.assertRaisesRegex(
            Mismatch, "have other names or shapes here than at another rank"
        ):
            it.exchange.synchronize()

    def test_later_exchanges_need_not_wait_for_it(self) -> None:
        it = Framework("ab")
        it.others_names = said("ab")
        for first in ("take x.used", "take x.gradient.a"):
            it.backward(0, 1)
            it.log.clear()
            it.exchange.synchronize()
            self.assertEqual(it.log[0], first)
            it.exchange.on_step()
            it.zero_grad()

    def test_another_job_is_not_judged_by_the_last_one(self) -> None:
        it = Framework("ab")
        it.others_names = said("ac")
        it.backward(0, 1)
        with self.assertRaisesRegex(Mismatch, "parameter 1 is 'b'"):
            it.exchange.synchronize()
        it.open.clear()
        it.exchange.begin_anew()
        it.others_names = None
        it.backward(0, 1)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)

    def test_names_that_are_added_count(self) -> None:
        it = Framework("a")
        it.others_names = said("a")
        it.backward(0)
        it.exchange.synchronize()
        it.exchange.on_step()
        it.zero_grad()
        it.add("b")
        it.others_names = said("ac")
        it.backward(0, 1)
        with self.assertRaisesRegex(Mismatch, "parameter 1 is 'b' at rank 0, but 'c' at rank 1"):
            it.exchange.synchronize()


class AssignedTest(unittest.TestCase):
    def test_what_was_assigned_counts_once(self) -> None:
        it = Framework("ab")
        it.gradients[1] = Gradient(4.0)
        it.exchange.synchronize()
        self.assertEqual(it.logged("push")[-1], "x.used=[0, 1, 1]")
        self.assertEqual(it.values(), [None, 2.0])
        it.exchange.on_step()
        # It stays, and is what it was; then it is changed.
        it.exchange.synchronize()
        self.assertEqual(it.logged("push")[-1], "x.used=[0, 0, 1]")
        it.exchange.on_step()
        it.change(1)
        it.exchange.synchronize()
        self.assertEqual(it.logged("push")[-1], "x.used=[0, 1, 1]")

    def test_what_is_there_already_is_not_new(self) -> None:
        def keep(_: Framework) -> None: ...

        def clip(it: Framework) -> None:
            it.change(0)
            it.exchange.on_step()

        def zero(it: Framework) -> None:
            it.change(0)
            it.exchange.on_zero_grad()

        for between in (keep, clip, zero):
            with self.subTest(between.__name__):
                it = Framework("ab")
                it.backward(0, 1)
                it.exchange.synchronize()
                between(it)
                it.backward(1)
                self.assertEqual(it.logged("push")[-1], "x.used=[0, 1, 1]")
                it.exchange.check_unchanged()

    def test_what_is_assigned_too_late(self) -> None:
        it = Framework("ab")
        it.backward(0)
        it.gradients[1] = Gradient(4.0)
        with self.assertRaisesRegex(InvalidArgument, "of 'b' was assigned after the backward pass"):
            it.exchange.check_unchanged()
        it.gradients[1] = None
        it.exchange.check_unchanged()
        it.exchange.synchronize()
        it.gradients[1] = Gradient(4.0)
        with self.assertRaisesRegex(InvalidArgument, "of 'b' was assigned after the backward pass"):
            it.exchange.synchronize()
        # What had a gradient may be replaced, also what nobody has used since.
        it.gradients = {0: Gradient(0.5), 1: Gradient(4.0)}
        it.exchange.on_zero_grad()
        it.backward(0)
        it.exchange.synchronize()
        it.gradients = {0: Gradient(0.5), 1: Gradient(1.0)}
        it.exchange.synchronize()
        it.zero_grad()
        it.backward(0)
        it.exchange.synchronize()
        # What all ranks have an average of may be replaced, as clipping does.
        it.gradients = {0: Gradient(0.5), 1: None}
        it.exchange.synchronize()

    def test_what_is_changed_while_it_is_under_way(self) -> None:
        it = Framework("ab")
        it.exchange.check_unchanged()
        it.backward(0)
        it.exchange.check_unchanged()
        it.change(0)
        with self.assertRaisesRegex(InvalidArgument, "of 'a' was changed while its average was"):
            it.exchange.check_unchanged()
        # What has been taken is nobody's concern.
        it.exchange.take([0])
        it.exchange.check_unchanged()

    def test_a_framework_has_words_of_its_own(self) -> None:
        it = Framework("a")
        with mock.patch.object(it, "text_of", lambda refusal: f"{refusal.name} {{name}}"):
            it.accumulate(0)
            with self.assertRaisesRegex(InvalidArgument, "^CAME_AGAIN a$"):
                it.accumulate(0)
        for refusal in Refusal:
            self.assertIn("'{name}'", refusal.value)


if __name__ == "__main__":
    unittest.main()
